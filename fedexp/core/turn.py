"""The record of one client's turn."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedexp.core.client_protocol import LocalData
from fedexp.core.messages import Message, Tensors


@dataclass
class Turn:
    """One client's local training: the data and message it uses, and the records so far.

    A client that also trains a personal model has a second turn for it.

    Attributes:
        data: the client's training data.
        message: the message that the client received.
        round: the round whose batches and learning rate are used.
        is_personal: whether a personal model is trained, not the shared model.
        learning_rate: learning rate of this round's local optimizer; NaN before training begins.
        steps: gradient steps taken.
        samples: training samples in the batches of these steps; a sample counts in each batch.
        last_epoch_from: the step, from 0, with which the last epoch of the last phase begins; None
            before that phase.
        measured: socket -> measurements of its part, summed over the steps.
        fitted: empty until ``finish``; then scalars on the device: ``loss``, the mean objective
            over all steps, and ``cross_entropy``, the mean cross-entropy over the steps of the last
            epoch.
        logged: name -> value, for the log.
        directions: name -> a change of the parameters, see ``Update``.
        num_samples: n_k, the number of the client's training samples. It stays if the client trains
            on other data in this turn (``Client.train_on``).
    """

    data: LocalData
    message: Message
    round: int
    is_personal: bool = False
    learning_rate: float = math.nan
    steps: int = 0
    samples: int = 0
    last_epoch_from: int | None = None
    measured: dict[str, Tensors] = field(default_factory=dict)
    fitted: Tensors = field(default_factory=dict)
    logged: dict[str, float] = field(default_factory=dict)
    directions: dict[str, Tensors] = field(default_factory=dict)
    _losses: list[Tensor] = field(default_factory=list)
    _cross_entropies: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.num_samples = self.data.num_samples

    def begin_last_phase(self, steps: int, steps_in_epoch: int) -> None:
        """Before the last phase of ``steps`` steps, record where its last epoch begins.

        The last ``steps_in_epoch`` steps of the phase are its last epoch. If the phase has fewer
        steps, all of its steps are its last epoch. With 2.5 epochs the last epoch begins in the
        middle of the second epoch.
        """
        self.last_epoch_from = self.steps + max(0, steps - steps_in_epoch)

    @property
    def in_last_epoch(self) -> bool:
        """Whether the next step belongs to the last epoch of the last phase."""
        return self.last_epoch_from is not None and self.steps >= self.last_epoch_from

    def took_step(
        self, loss: Tensor, measured: Mapping[str, Tensors], cross_entropy: Tensor | None
    ) -> None:
        """Record a step.

        Args:
            loss: the objective before the step, without gradient.
            measured: socket -> measurements of its part.
            cross_entropy: mean cross-entropy of the step's batch; kept only in the last epoch.
        """
        self._losses.append(loss)
        if cross_entropy is not None and self.in_last_epoch:
            self._cross_entropies.append(cross_entropy)
        self.steps += 1
        for name, tensors in measured.items():
            sums = self.measured.setdefault(name, {})
            for key, value in tensors.items():
                sums[key] = sums[key] + value if key in sums else value

    def finish(self) -> None:
        """After the last step, compute ``fitted``: the mean loss and cross-entropy of the turn."""
        self.fitted = {"loss": torch.stack(self._losses).mean()}
        if self._cross_entropies:
            self.fitted["cross_entropy"] = torch.stack(self._cross_entropies).mean()
        self.last_epoch_from, self._losses, self._cross_entropies = None, [], []
