"""The messages between the server and the nodes: the values of one dataclass, as bytes.

``fedexp.distributed.wire`` turns the values into bytes. Nothing is pickled. The receiver checks the
type of each value.
"""

import sys
from dataclasses import replace
from typing import TypeVar

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import Tensor

from fedexp.core.messages import Extras, Message, Tensors, Update
from fedexp.distributed.wire import decode, encode
from fedexp.faults.quarantine import is_finite

Letter = TypeVar("Letter")
R = TypeVar("R", bound="Request")

HEAD = "head"
"""Name of the record with the app's version, and with the reason for a refusal."""

_CONTENT = "content"
_FORMAT = f"fedexp.wire.{sys.byteorder}"
_TYPES = ConfigDict(arbitrary_types_allowed=True, strict=True)


class RefusedError(ValueError):
    """A message is from another app, is malformed, has wrong shapes or reports a refusal.

    The error's text is one line.
    """


@dataclass(frozen=True, config=_TYPES)
class Introduction:
    """The facts that a node tells the server about itself.

    Attributes:
        client: the number of the node's client.
        samples: the number of the client's training samples.
        dataset: a digest of the names and shapes of the node's dataset.
    """

    client: int
    samples: int
    dataset: str


@dataclass(frozen=True, config=_TYPES)
class Request:
    """A round's message to one client.

    Attributes:
        run: the name of the run, under which the node stores the client's states.
        round: the number of the round.
        weights: the weights of the message to this client.
        extras: the parts' tensors of the message to this client.
        base: the last round whose update of this client the server received; 0 for none. The
            client goes on from its state after that round.
        saved: the round of the server's oldest checkpoint; the server may go back to it.
        sizes: [N] int64, the number of training samples of each client.
        class_counts: [N, C] int64, training samples of each class at each client; None unless a
            part asked for them.
    """

    run: str
    round: int
    weights: Tensors
    extras: Extras
    base: int
    saved: int
    sizes: Tensor
    class_counts: Tensor | None

    @property
    def message(self) -> Message:
        """The round's message to this client."""
        return Message(self.round, self.weights, self.extras)


@dataclass(frozen=True, config=_TYPES)
class ScoreRequest(Request):
    """A request for the scores of the client's personal model.

    Attributes:
        tune: whether the personal model is tuned first, if the method tunes.
        kinds: the metrics to compute.
        own: see ``ScoredSamples.own``.
    """

    tune: bool
    kinds: list[str]
    own: bool


@dataclass(frozen=True, config=_TYPES)
class Turn:
    """The update of a client, without the update's ``directions``.

    Attributes:
        weights, extras, metrics, steps, is_finite: as in ``Update``.
        num_samples: the client's number of training samples.
        samples: training samples in the batches of all steps.
        lost_state: whether the node lacked the state from which the client should have started.
    """

    weights: Tensors
    extras: Extras
    metrics: dict[str, float]
    num_samples: int
    steps: int
    samples: int
    is_finite: bool
    lost_state: bool


@dataclass(frozen=True, config=_TYPES)
class Answer:
    """Tensors by name, such as class counts or the answer to a sampler."""

    tensors: Tensors


@dataclass(frozen=True, config=_TYPES)
class Scores:
    """The scores of a client's personal model; ``scored`` is false if it keeps no model."""

    scored: bool
    accuracies: dict[str, float]
    others: dict[str, float]


def pack(app: str, letter: object = None) -> RecordDict:
    """Pack a letter for the receiver's ``read``; None is a message without content.

    Args:
        app: ``App.version`` of the sender.
        letter: an object of one of the dataclasses above.
    """
    records = RecordDict({HEAD: ConfigRecord({"app": app})})
    if letter is not None:
        content = encode(vars(letter)).numpy().tobytes()
        array = Array("uint8", (len(content),), _FORMAT, content)
        records[_CONTENT] = ArrayRecord({_CONTENT: array})
    return records


def refusal(app: str, reason: str) -> RecordDict:
    """The reply of a node that refuses a request."""
    return RecordDict({HEAD: ConfigRecord({"app": app, "refused": reason})})


def check(records: RecordDict, app: str) -> None:
    """Raise RefusedError if the sender refused the request, or runs another app."""
    head = records.config_records.get(HEAD, {})
    if reason := head.get("refused"):
        raise RefusedError(f"refused the request: {reason}")
    if head.get("app") != app:
        raise RefusedError(
            f"is of app {head.get('app', '(none)')}, not {app}: the config or the version of "
            "fedexp differs"
        )


def read(records: RecordDict, app: str, kind: type[Letter]) -> Letter:
    """Inverse of ``pack``, for a letter of this ``kind``; tensors are on the CPU.

    Raises RefusedError if the sender refused the request, runs another app, or sent anything else.
    """
    check(records, app)
    try:
        array = records.array_records[_CONTENT][_CONTENT]
        if array.stype != _FORMAT:
            raise ValueError(f"it is not in the format {_FORMAT}")
        content = torch.frombuffer(bytearray(array.data), dtype=torch.uint8)
        return kind(**decode(content, torch.device("cpu")))
    except Exception as error:  # its type depends on the bytes
        reason = " ".join(str(error).split())[:200]
        raise RefusedError(f"sent no valid {kind.__name__} ({reason})") from error


def read_request(records: RecordDict, app: str, kind: type[R], device: torch.device) -> R:
    """Read a request with the message's tensors on ``device``.

    Raises RefusedError if it is malformed, or if the run's name cannot be a folder's name.
    """
    request = read(records, app, kind)
    if not request.run.isalnum():
        raise RefusedError(f"names the run {request.run!r}, which cannot be the name of a folder")
    extras = {socket: _on(device, tensors) for socket, tensors in request.extras.items()}
    return replace(request, weights=_on(device, request.weights), extras=extras)


def read_update(turn: Turn, client: int, samples: int, draws: int, message: Message) -> Update:
    """The update in a client's turn; finiteness is checked anew.

    Args:
        turn: the client's turn.
        client: the client that was asked.
        samples: the number of training samples that the client has said it has.
        draws: how often the sampler drew this client.
        message: the message to this client; the update must have weights of the same shapes.

    Raises:
        RefusedError: the turn does not fit ``message`` or ``samples``.
    """
    if turn.num_samples != samples:
        raise RefusedError(f"has {turn.num_samples} training samples, but said {samples}")
    _check_shapes(turn.weights, message.weights)
    device = next((each.device for each in message.weights.values()), torch.device("cpu"))
    update = Update(
        client,
        samples,
        {name: turn.weights[name].to(device) for name in message.weights},
        {socket: _on(device, tensors) for socket, tensors in turn.extras.items()},
        turn.metrics,
        steps=turn.steps,
        samples=turn.samples,
        draws=draws,
    )
    return replace(update, is_finite=turn.is_finite and is_finite(update))


def _on(device: torch.device, tensors: Tensors) -> Tensors:
    return {name: value.to(device) for name, value in tensors.items()}


def _check_shapes(weights: Tensors, wanted: Tensors) -> None:
    for name, like in wanted.items():
        found = weights.get(name)
        if found is None:
            raise RefusedError(f"did not send the weight {name}")
        if found.shape != like.shape or found.dtype != like.dtype:
            raise RefusedError(
                f"sent the weight {name} as {tuple(found.shape)} {found.dtype} instead of "
                f"{tuple(like.shape)} {like.dtype}"
            )
    if strange := sorted(weights.keys() - wanted.keys()):
        raise RefusedError(f"sent the unknown weight {strange[0]}")
