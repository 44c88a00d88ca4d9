"""The end of a client's turn: its update, as the server receives it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from fedexp.compression.upload import MEMORY, CompressedUpload
from fedexp.core import results
from fedexp.core.messages import Tensors, Update
from fedexp.core.turn import Turn
from fedexp.engines.resources import Resources
from fedexp.faults.base import Faults
from fedexp.faults.quarantine import has_finite_sums, is_finite
from fedexp.state.client_state import ClientState


class Trained(NamedTuple):
    """A client after local training.

    Attributes:
        update: the client's update, without the metrics in ``fitted``.
        turn: the turn in which the client trained the shared model.
        state: the client's state after training.
        before: the client's state at the start of the round.
    """

    update: Update
    turn: Turn
    state: ClientState
    before: ClientState

    @property
    def fitted(self) -> Tensors:
        """``Turn.fitted``: the mean loss and cross-entropy of the turn, scalars on the device."""
        return self.turn.fitted


def end_turns(turns: Sequence[Trained], resources: Resources) -> list[Update]:
    """Complete the updates: the result has the updates as the server receives them.

    An update is compressed and decoded, and then gets the injected faults. ``is_finite`` is False
    if the update, or a tensor that its client keeps, is not finite. ``is_late`` is True if the
    update misses the simulated deadline. In both cases the client gets back its state from the
    start of the round. ``Turn.fitted`` and the size of the client's state are added to the metrics.
    This function waits for the device once, for all turns together.
    """
    module = resources.module
    sent = [_sent(each, resources.upload) for each in turns]
    arrived = [
        _after_faults(update, each, resources.faults)
        for update, each in zip(sent, turns, strict=True)
    ]
    scalars = [
        torch.stack([*turn.fitted.values(), _sums_are_finite(turn, update, module.device).float()])
        for turn, update in zip(turns, arrived, strict=True)
    ]
    return [
        _ended(turn, update, values, resources)
        for turn, update, values in zip(turns, arrived, on_host(scalars), strict=True)
    ]


def _sent(trained: Trained, upload: CompressedUpload | None) -> Update:
    """The update that the server gets: compressed and decoded if there is a compressor."""
    if upload is None:
        return trained.update
    return upload.send(trained.update, trained.turn.message, trained.state.memory(MEMORY))


def _after_faults(sent: Update, trained: Trained, faults: Faults) -> Update:
    """The update of a client as it arrives at the server."""
    arrived = faults.corrupt(sent, trained.turn.message)
    if arrived is sent:
        return arrived
    return results.update(arrived, sent.weights, "faults", faults, "corrupt(...)")


def _sums_are_finite(turn: Trained, arrived: Update, device: torch.device) -> Tensor:
    return has_finite_sums(arrived, _kept(turn, arrived), device)


def _kept(turn: Trained, arrived: Update) -> list[Tensors]:
    """The weights that stay at the client and must be finite: private weights, separate model.

    A compressed update shows only a part of the trained weights. Then the result also has all
    shared weights after training and the memory of the compressor.
    """
    kept = [turn.state.private, turn.state.separate_model]
    if arrived.weights_nbytes is not None:
        kept += [turn.update.weights, turn.state.memory(MEMORY)]
    return kept


def on_host(rows: Sequence[Tensor]) -> list[list[float]]:
    """Copy the numbers in ``rows`` to the CPU; this waits for the device."""
    numbers: list[list[float]] = torch.stack(list(rows)).tolist()
    return numbers


def _ended(turn: Trained, arrived: Update, values: Sequence[float], resources: Resources) -> Update:
    """Complete the update that arrived: add the metrics, and check whether it is finite or late.

    ``values`` are the numbers of ``turn.fitted``, followed by 1 if the update's sums are finite and
    by 0 if not.
    """
    *fitted, sums_are_finite = values
    finite = bool(sums_are_finite) or is_finite(arrived, _kept(turn, arrived))
    is_late = resources.system.is_late(arrived.client, arrived.samples, arrived.nbytes)
    if not finite or is_late:
        vars(turn.state).update(vars(turn.before))
    metrics = {
        **dict(zip(turn.fitted, fitted, strict=True)),
        **arrived.metrics,
        "cost/client_memory_bytes": float(turn.state.method_nbytes),
        "cost/stored_parameters": float(resources.module.stored_parameters),
    }
    return replace(arrived, metrics=metrics, is_finite=finite, is_late=is_late)
