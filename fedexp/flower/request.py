"""The requests that the server sends to a node."""

from dataclasses import dataclass

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedexp.core.messages import Extras, Message
from fedexp.flower.refused import RefusedError
from fedexp.flower.tensors import pack, unpack

HEAD = "head"
"""Name of the record with the plain values (numbers and text) of a request or a reply."""


@dataclass(frozen=True)
class Facts:
    """Facts about all clients; parts need them on the server and on the nodes.

    Attributes:
        sizes: [N] int64, the number of training samples of each client.
        class_counts: [N, C] int64, training samples of each class at each client; None unless a
            part asked for them.
    """

    sizes: Tensor
    class_counts: Tensor | None


@dataclass(frozen=True)
class Request:
    """A round's message to one client.

    Attributes:
        app: ``App.version`` of the server.
        run: the name of the run, under which the node stores the client's states.
        message: the message to this client.
        base: the last round whose update of this client the server received; 0 for none. The
            client goes on from its state after that round.
        saved: the round of the server's oldest checkpoint; the server may go back to it.
        facts: facts about all clients.
    """

    app: str
    run: str
    message: Message
    base: int
    saved: int
    facts: Facts


def pack_request(request: Request, **options: str | int | bool | list[str]) -> RecordDict:
    """Pack the request into records; ``options`` are further values for the node."""
    message, facts = request.message, request.facts
    head = ConfigRecord(
        {
            "app": request.app,
            "run": request.run,
            "round": message.round,
            "base": request.base,
            "saved": request.saved,
            **options,
        }
    )
    known = {"sizes": facts.sizes}
    if facts.class_counts is not None:
        known["class_counts"] = facts.class_counts
    tensors = {"weights": message.weights, "facts": known, **_named(message.extras)}
    return RecordDict({HEAD: head, **{name: pack(each) for name, each in tensors.items()}})


def read_request(content: RecordDict, device: torch.device) -> Request:
    """Inverse of ``pack_request``; the message's tensors are on ``device``.

    Raises RefusedError if a tensor is malformed, or if the run's name cannot be a folder's name.
    """
    head, records = content.config_records[HEAD], content.array_records
    extras = read_extras(content, device)
    message = Message(int(head["round"]), unpack(records["weights"], device), extras)
    known = unpack(records["facts"], torch.device("cpu"))
    facts = Facts(known["sizes"], known.get("class_counts"))
    names = str(head["app"]), str(head["run"])
    if not names[1].isalnum():
        raise RefusedError(f"names the run {names[1]!r}, which cannot be the name of a folder")
    return Request(*names, message, int(head["base"]), int(head["saved"]), facts)


def check_app(content: RecordDict, app: str) -> None:
    """Raise RefusedError unless the records are of this app."""
    head = content.config_records.get(HEAD, {})
    if head.get("app") != app:
        raise RefusedError(
            f"is of app {head.get('app', '(none)')}, not {app}: the config or the version of "
            "fedexp differs"
        )


def pack_extras(extras: Extras) -> RecordDict:
    """Pack the tensors of parts into records."""
    return RecordDict({name: pack(each) for name, each in _named(extras).items()})


def read_extras(content: RecordDict, device: torch.device) -> Extras:
    """Inverse of ``pack_extras``, on ``device``. Raises RefusedError if a tensor is malformed."""
    start = "extras."
    return {
        name.removeprefix(start): unpack(record, device)
        for name, record in content.array_records.items()
        if name.startswith(start)
    }


def _named(extras: Extras) -> Extras:
    return {f"extras.{socket}": tensors for socket, tensors in extras.items()}
