"""A client's turn after local training, and what ends it: the update that the server receives."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedexp.core.messages import Message, Tensors, Update
from fedexp.engines.resources import Resources
from fedexp.faults.quarantine import has_finite_sums, is_finite
from fedexp.state.client_state import ClientState


class Turn(NamedTuple):
    """A client's turn after local training.

    Attributes:
        update: without the metrics that ``Engine.fit`` returned.
        fitted: these metrics, scalars on the device.
        state: what the client keeps.
        before: a copy of it from the start of the round.
    """

    update: Update
    fitted: Tensors
    state: ClientState
    before: ClientState


def end_turns(turns: Sequence[Turn], message: Message, resources: Resources) -> list[Update]:
    """The updates as the server receives them, with injected faults.

    If one is not finite, the server will reject it, and its client's state goes back to what it was
    before. What ``Engine.fit`` returned and what the client stores are added to the metrics. This
    is where turns wait for the device, once for all of them.
    """
    module = resources.module
    arrived = [resources.faults.corrupt(turn.update, message) for turn in turns]
    scalars = [
        torch.stack([*turn.fitted.values(), has_finite_sums(update, module.device).float()])
        for turn, update in zip(turns, arrived, strict=True)
    ]
    return [
        _ended(turn, update, values, module.stored_parameters)
        for turn, update, values in zip(turns, arrived, on_host(scalars), strict=True)
    ]


def on_host(rows: Sequence[Tensor]) -> list[list[float]]:
    """The numbers of all ``rows``, which waits for the device."""
    found: list[list[float]] = torch.stack(list(rows)).tolist()
    return found


def _ended(turn: Turn, arrived: Update, values: Sequence[float], stored: int) -> Update:
    """The update that arrived, given the numbers of ``turn.fitted`` and whether sums are finite."""
    *fitted, sums_are_finite = values
    finite = bool(sums_are_finite) or is_finite(arrived)
    if not finite:
        vars(turn.state).update(vars(turn.before))
    metrics = {
        **dict(zip(turn.fitted, fitted, strict=True)),
        **arrived.metrics,
        "cost/client_memory_bytes": float(turn.state.method_nbytes),
        "cost/stored_parameters": float(stored),
    }
    return replace(arrived, metrics=metrics, is_finite=finite)
