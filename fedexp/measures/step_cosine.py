"""Cosines between clients' steps and the global step of a round (FedPTR, Figure 2)."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution
from fedexp.engines.resources import Resources
from fedexp.measures.measure import AfterRound, Measure, Measured


class StepCosine(Measure):
    """``geometry/<kind>_step_cosine``: mean cosine of each kind of step with the global step.

    The global step of round t is g = w^{t+1} - w^t, where w^t are the global weights at the start
    of the round. It is compared with the step $w_k - w^t$ to the trained weights w_k of client k
    (kind ``local``), and with each direction that a part logs (its kind is the direction's name).
    Steps are vectors of all shared parameters, without buffers. With compressed downloads, w^t are
    the weights that the clients received.

    The mean cosine with g is the inner product of $g / |g|$ and the mean of the unit vectors. So
    only one float64 sum of unit vectors is stored for each kind, even if the cohort is large.
    """

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Find the shared parameters, of which steps consist."""
        self._parameters = setting.model.shared & setting.model.parameters.keys()

    def begin_round(self, message: Message) -> None:
        """Store w^t, the global weights before the round, and start new sums of unit vectors."""
        weights = message.weights
        self._start = {n: weights[n].double() for n in weights if n in self._parameters}
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def observe(self, update: Update) -> None:
        """Add one client's step and its logged directions to the sums."""
        self._add("local", self._step_to(update.weights))
        for name, direction in update.directions.items():
            self._add(name, self._flatten(direction))

    def contribution(self) -> Contribution:
        """The sum of unit vectors of each kind of step, and the number of steps in each sum."""
        return Contribution(self._sums, dict(self._counts))

    def set_reduced(self, sums: Tensors, items: Sequence[dict[str, int]]) -> None:
        """Replace this process's sums and numbers by the totals of all processes."""
        self._sums, self._counts = sums, sum(map(Counter, items), Counter())

    def __call__(self, after: AfterRound) -> Measured:
        """The mean cosine of each kind of step, over the clients with such a step.

        Every client has the same weight. Clients' steps that are zero or not finite are left out. A
        kind without remaining steps is absent. If the global step is zero or not finite, nothing is
        measured.
        """
        step = _unit(self._step_to(after.message.weights))
        if step is None:
            return Measured()
        cosines = {k: (total @ step).item() / self._counts[k] for k, total in self._sums.items()}
        return Measured({f"geometry/{kind}_step_cosine": each for kind, each in cosines.items()})

    def _add(self, kind: str, step: Tensor) -> None:
        unit = _unit(step)
        if unit is not None:
            self._sums[kind] = self._sums[kind].add_(unit) if kind in self._sums else unit
            self._counts[kind] += 1

    def _step_to(self, weights: Tensors) -> Tensor:
        return self._flatten({n: weights[n] - before for n, before in self._start.items()})

    def _flatten(self, step: Tensors) -> Tensor:
        """The step as one float64 vector; a parameter that is not in ``step`` becomes zero."""
        moves = [
            step[name].to(before) if name in step else torch.zeros_like(before)
            for name, before in self._start.items()
        ]
        return torch.cat([move.flatten() for move in moves]) if moves else torch.zeros(0)


def _unit(step: Tensor) -> Tensor | None:
    """The unit vector of the step; None if the step is zero or not finite."""
    length = step.norm()
    return step / length if 0 < length < torch.inf else None
