"""Cosines of clients' steps with the global step of a round (FedPTR, Figure 2)."""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution
from fedexp.engines.resources import Resources
from fedexp.measures.after_round import AfterRound
from fedexp.measures.measure import Measure, Measured


class StepCosine(Measure):
    """``geometry/<kind>_step_cosine``: mean cosine of each kind of step with the global step.

    The global step is g = w^{t+1} - w^t. The clients' own steps w_k - w^t (``local``), and every
    direction that a part logs, are compared with g. Steps are vectors of all shared parameters,
    without buffers.
    The mean cosine with g is the inner product of the mean unit vector and g / |g|, so only one
    float64 sum is kept for each kind of step, also for a large cohort.
    """

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Find the parameters that are compared."""
        self._parameters = setting.shared & setting.parameter_shapes.keys()

    def begin_round(self, message: Message) -> None:
        """Store w^t and start the sums anew."""
        weights = message.weights
        self._start = {n: weights[n].double() for n in weights if n in self._parameters}
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def observe(self, update: Update) -> None:
        """Add one client's steps."""
        self._add("local", self._step_to(update.weights))
        for name, direction in update.directions.items():
            self._add(name, self._flatten(direction))

    def contribution(self) -> Contribution:
        """The sums of unit steps, and the number of steps in each sum."""
        return Contribution(self._sums, dict(self._counts))

    def set_reduced(self, sums: Tensors, items: Sequence[dict[str, int]]) -> None:
        """Replace this process's sums and numbers by the totals of all processes."""
        self._sums, self._counts = sums, sum(map(Counter, items), Counter())

    def __call__(self, after: AfterRound) -> Measured:
        """The mean cosine of each kind of step, over the clients with such a step.

        Each client counts once. Steps that are zero or not finite are left out; a kind with no
        remaining step is absent.
        """
        step = _unit(self._step_to(after.message.weights))
        if step is None:
            return Measured()
        return Measured(
            {
                f"geometry/{kind}_step_cosine": (total @ step).item() / self._counts[kind]
                for kind, total in self._sums.items()
            }
        )

    def _add(self, kind: str, step: Tensor) -> None:
        unit = _unit(step)
        if unit is not None:
            self._sums[kind] = self._sums[kind].add_(unit) if kind in self._sums else unit
            self._counts[kind] += 1

    def _step_to(self, weights: Tensors) -> Tensor:
        return self._flatten({n: weights[n] - before for n, before in self._start.items()})

    def _flatten(self, step: Tensors) -> Tensor:
        """One float64 vector; a parameter that is not in ``step`` counts as zero."""
        moves = [
            step[name].to(before) if name in step else torch.zeros_like(before)
            for name, before in self._start.items()
        ]
        return torch.cat([move.flatten() for move in moves]) if moves else torch.zeros(0)


def _unit(step: Tensor) -> Tensor | None:
    """The unit vector of the step; None if it is zero or not finite."""
    length = step.norm()
    return step / length if 0 < length < torch.inf else None
