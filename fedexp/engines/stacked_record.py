"""The record of the local training of all clients of a stack."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.forward import mean_over
from fedexp.core.messages import Tensors
from fedexp.core.transfer import to_device
from fedexp.core.turn import Turn


class StackedRecord:
    """Sums of losses and measurements over the training steps, for each client of a stack.

    If only A clients still train in a step, they are the first A of the stack.

    Args:
        turns: the clients' turns.
        device: the device of the losses.
    """

    def __init__(self, turns: Sequence[Turn], device: torch.device) -> None:
        self._turns, self._device = turns, device
        self._losses = torch.zeros(len(turns), device=device)
        self._cross_entropies = torch.zeros(len(turns), device=device)
        self._measured: dict[str, Tensors] = {}
        self._steps = torch.zeros(len(turns), dtype=torch.int64)
        self._samples = torch.zeros(len(turns), dtype=torch.int64)

    @property
    def steps(self) -> Tensor:
        """The steps [rows] of each client in the phases that have ended, int64 on the device."""
        return to_device(self._steps, self._device)

    def add(self, losses: Tensor, measured: Mapping[str, Tensors]) -> None:
        """Record a step.

        Args:
            losses: [A], the objective of each client that trained.
            measured: socket -> the measurements of its part, tensors [A, ...].
        """
        self._losses[: len(losses)] += losses.detach()
        for socket, tensors in measured.items():
            sums = self._measured.setdefault(socket, {})
            for name, value in tensors.items():
                if name not in sums:
                    sums[name] = value.new_zeros(len(self._turns), *value.shape[1:])
                sums[name][: len(value)] += value

    def add_cross_entropies(
        self, logits: Tensor, targets: Tensor, real: Tensor, last: Tensor
    ) -> None:
        """Record the cross-entropy of a step of each client that is in its last epoch.

        Args:
            logits: [A, B, C], without gradient.
            targets: labels [A, B].
            real: [A, B], 1 for a sample and 0 for padding.
            last: [A] bool, whether the step belongs to the client's last epoch.
        """
        # One call for all clients: ``vmap`` takes longer than the computation.
        values = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        means = mean_over(values.view_as(targets).T, real.T)
        self._cross_entropies[: len(last)] += means.where(last, 0)

    def end_phase(self, steps: Sequence[int], samples: Sequence[int]) -> None:
        """Record each client's steps in a phase, and the samples of these steps."""
        self._steps = self._steps + torch.tensor(steps)
        self._samples = self._samples + torch.tensor(samples)

    def finish(self, learning_rate: float, steps_of_last_epoch: Sequence[int]) -> None:
        """Write the record into the turns.

        Args:
            learning_rate: the learning rate of the local optimizers.
            steps_of_last_epoch: each client's steps in its last epoch.
        """
        counts = torch.stack([self._steps, torch.tensor(steps_of_last_epoch)])
        steps, last = to_device(counts.float(), self._device)
        means = {"loss": self._losses / steps, "cross_entropy": self._cross_entropies / last}
        for row, turn in enumerate(self._turns):
            turn.learning_rate = learning_rate
            turn.steps, turn.samples = int(self._steps[row]), int(self._samples[row])
            turn.measured = {
                socket: {name: value[row].clone() for name, value in tensors.items()}
                for socket, tensors in self._measured.items()
            }
            turn.fitted = {name: values[row] for name, values in means.items()}
