"""The replies that a node sends to the server."""

from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedexp.core.messages import Message, Tensors, Update
from fedexp.faults.quarantine import is_finite
from fedexp.flower.refused import RefusedError
from fedexp.flower.request import HEAD, check_app, pack_extras, read_extras
from fedexp.flower.tensors import pack, unpack

_CPU = torch.device("cpu")


def refusal(app: str, reason: str) -> RecordDict:
    """The reply of a node that refuses a request."""
    return RecordDict({HEAD: ConfigRecord({"app": app, "refused": reason})})


def check_reply(content: RecordDict, app: str) -> None:
    """Raise RefusedError if the node refused the request, or runs another app."""
    head = content.config_records.get(HEAD, {})
    if reason := head.get("refused"):
        raise RefusedError(f"refused the request: {reason}")
    check_app(content, app)


@dataclass(frozen=True)
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


def pack_introduction(app: str, about: Introduction) -> RecordDict:
    """Pack the introduction into records."""
    return RecordDict({HEAD: ConfigRecord({"app": app, **vars(about)})})


def read_introduction(content: RecordDict, app: str) -> Introduction:
    """Inverse of ``pack_introduction``; ``app`` is the server's ``App.version``.

    Raises RefusedError if the node refused the request, runs another app, or does not say which
    client it has.
    """
    check_reply(content, app)
    head = content.config_records[HEAD]
    values = [head.get(name) for name in ("client", "samples", "dataset")]
    if [type(value) for value in values] != [int, int, str]:
        raise RefusedError("does not say which client it has")
    return Introduction(*values)


def pack_update(app: str, update: Update, lost_state: bool) -> RecordDict:
    """Pack the update into records, without the update's ``directions``.

    ``lost_state``: whether the node lacked the state from which the client should have started.
    """
    head = {
        "app": app,
        "samples": update.num_samples,
        "steps": update.steps,
        "computed": update.samples,
        "is_finite": update.is_finite,
        "lost_state": lost_state,
    }
    metrics = MetricRecord({name: float(value) for name, value in update.metrics.items()})
    records = {HEAD: ConfigRecord(head), "metrics": metrics, "weights": pack(update.weights)}
    return RecordDict({**records, **pack_extras(update.extras)})


def lost_state(content: RecordDict) -> bool:
    """Whether the node lacked the state from which the client should have started."""
    return bool(content.config_records[HEAD].get("lost_state"))


def read_update(
    content: RecordDict, app: str, client: int, samples: int, draws: int, message: Message
) -> Update:
    """Inverse of ``pack_update``; finiteness is checked anew.

    Args:
        content: the reply's records.
        app: ``App.version`` of the server.
        client: the client that was asked.
        samples: the number of training samples that the client has said it has.
        draws: how often the sampler drew this client.
        message: the message to this client; the update must have weights of the same shapes.

    Raises:
        RefusedError: the node refused the request, or the reply does not fit ``message``.
    """
    check_reply(content, app)
    head, device = content.config_records[HEAD], _device(message)
    steps, computed = head.get("steps"), head.get("computed")
    if type(steps) is not int or type(computed) is not int:
        raise RefusedError("did not send its numbers of steps and of samples in them")
    if head.get("samples") != samples:
        raise RefusedError(f"has {head.get('samples')} training samples, but said {samples}")
    weights = unpack(content.array_records.get("weights", {}), device)
    _check_shapes(weights, message.weights)
    update = Update(
        client,
        samples,
        {name: weights[name] for name in message.weights},
        read_extras(content, device),
        dict(content.metric_records.get("metrics", {})),
        steps=steps,
        samples=computed,
        draws=draws,
    )
    finite = bool(head.get("is_finite")) and is_finite(update)
    return Update(**vars(update) | {"is_finite": finite})


def pack_tensors(app: str, tensors: Tensors) -> RecordDict:
    """Pack tensors into a reply, such as class counts or the answer to a sampler."""
    return RecordDict({HEAD: ConfigRecord({"app": app}), "tensors": pack(tensors)})


def read_tensors(content: RecordDict, app: str) -> Tensors:
    """Inverse of ``pack_tensors``; ``app`` is the server's ``App.version``.

    Raises RefusedError if the node refused the request, runs another app, or sent no tensors or
    malformed ones.
    """
    check_reply(content, app)
    if "tensors" not in content.array_records:
        raise RefusedError("sent no tensors")
    return unpack(content.array_records["tensors"], _CPU)


def _device(message: Message) -> torch.device:
    return next((weight.device for weight in message.weights.values()), _CPU)


def _check_shapes(weights: Tensors, wanted: Tensors) -> None:
    for name, like in wanted.items():
        found: Tensor | None = weights.get(name)
        if found is None:
            raise RefusedError(f"did not send the weight {name}")
        if found.shape != like.shape or found.dtype != like.dtype:
            raise RefusedError(
                f"sent the weight {name} as {tuple(found.shape)} {found.dtype} instead of "
                f"{tuple(like.shape)} {like.dtype}"
            )
    if strange := sorted(weights.keys() - wanted.keys()):
        raise RefusedError(f"sent the unknown weight {strange[0]}")
