"""The end of a client's turn: its update, as the server receives it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedexp.core import results
from fedexp.core.messages import Tensors, Update
from fedexp.core.turn import Turn
from fedexp.engines.resources import Resources
from fedexp.faults.quarantine import has_finite_sums, is_finite
from fedexp.state.client_state import ClientState

_MEMORY = "compression"
"""The name of a client's memory with the lost differences and the compressor's tensors."""


class Trained(NamedTuple):
    """A client after local training.

    Attributes:
        update: the client's update, without the metrics in ``Turn.fitted``.
        turn: the turn in which the client trained the shared model.
        state: the client's state after training.
        before: the client's state at the start of the round.
    """

    update: Update
    turn: Turn
    state: ClientState
    before: ClientState


def end_turns(turns: Sequence[Trained], resources: Resources) -> list[Update]:
    """Complete the updates: the result has the updates as the server receives them.

    An update is compressed and decoded, and then gets the injected faults. ``is_finite`` is False
    if the update, or a tensor that its client keeps, is not finite. ``is_late`` is True if the
    update misses the simulated deadline. In both cases the client gets back its state from the
    start of the round. ``Turn.fitted`` and the size of the client's state are added to the metrics.
    This function waits for the device once, for all turns together.
    """
    arrived = [_arrived(each, resources) for each in turns]
    kept = [_kept(trained, update) for trained, update in zip(turns, arrived, strict=True)]
    device, scalars = resources.module.device, []
    for trained, update, own in zip(turns, arrived, kept, strict=True):
        sums_are_finite = has_finite_sums(update, own, device).float()
        scalars.append(torch.stack([*trained.turn.fitted.values(), sums_are_finite]))
    ended = []
    for trained, update, own, values in zip(turns, arrived, kept, on_host(scalars), strict=True):
        finite = bool(values[-1]) or is_finite(update, own)
        ended.append(_ended(trained, update, values[:-1], finite, resources))
    return ended


def _arrived(trained: Trained, resources: Resources) -> Update:
    """The update as it arrives at the server: compressed and decoded, with injected faults."""
    upload, faults, message = resources.upload, resources.faults, trained.turn.message
    sent = trained.update
    if upload is not None:
        sent = upload.send(sent, message, trained.state.memory(_MEMORY))
    arrived = faults.corrupt(sent, message)
    if arrived is sent:
        return sent
    return results.update(arrived, sent.weights, "faults", faults, "corrupt(...)")


def _kept(trained: Trained, arrived: Update) -> list[Tensors]:
    """The weights that stay at the client and must be finite: private weights, personal model.

    Weights of the personal model that are also sent are left out. A compressed update shows only a
    part of the trained weights. Then the result also has all shared weights after training and the
    memory of the compressor.
    """
    state, sent = trained.state, trained.update.weights
    unsent = {n: w for n, w in state.personal_model.items() if n in sent and w is not sent[n]}
    kept = [state.private, state.separate_model or unsent]
    if arrived.weights_nbytes is not None:
        kept += [trained.update.weights, trained.state.memory(_MEMORY)]
    return kept


def on_host(rows: Sequence[Tensor]) -> list[list[float]]:
    """Copy the numbers in ``rows`` to the CPU; this waits for the device."""
    numbers: list[list[float]] = torch.stack(list(rows)).tolist()
    return numbers


def _ended(
    trained: Trained, arrived: Update, fitted: Sequence[float], finite: bool, resources: Resources
) -> Update:
    """Complete the update that arrived; ``fitted`` are the numbers of ``Turn.fitted``."""
    is_late = resources.system.is_late(arrived.client, arrived.samples, arrived.nbytes)
    if not finite or is_late:
        vars(trained.state).update(vars(trained.before))
    metrics = {
        **dict(zip(trained.turn.fitted, fitted, strict=True)),
        **arrived.metrics,
        "cost/client_memory_bytes": float(trained.state.method_nbytes),
        "cost/stored_parameters": float(resources.module.stored_parameters),
    }
    return replace(arrived, metrics=metrics, is_finite=finite, is_late=is_late)
