"""Cosines of clients' steps with the global step of a round (FedPTR, Figure 2)."""

from collections import Counter
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from fedexp.core.messages import Tensors, Update
from fedexp.distributed.ranks import Contribution


class Alignment:
    """Cosines of one round's steps with the global step.

    The clients' own steps w_k - w^t, and every direction that a part logs, are compared with
    w^{t+1} - w^t = g. The mean cosine with g is the inner product of the mean unit vector and
    g / |g|, so only one sum in float64 is kept for each kind of step, whatever the cohort's size.

    Args:
        start: w^t, what the clients start from.
        parameters: names of the parameters to compare, as one vector; buffers have no direction.
    """

    def __init__(self, start: Tensors, parameters: Collection[str]) -> None:
        self._start = {name: start[name].double() for name in start if name in parameters}
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def observe(self, update: Update) -> None:
        """Add one client's steps."""
        self._add("local", self._step_to(update.weights))
        for name, direction in update.directions.items():
            self._add(name, self._flatten(direction))

    def contribution(self) -> Contribution:
        """The sums of this rank's unit steps, and their numbers."""
        return Contribution(self._sums, self._counts)

    def set_reduced(self, sums: Tensors, items: Sequence[Counter[str]]) -> None:
        """Those of all ranks."""
        self._sums, self._counts = sums, sum(items, Counter())

    def metrics(self, merged: Tensors) -> dict[str, float]:
        """``geometry/<kind>_step_cosine`` for each kind of step; ``merged`` is w^{t+1}.

        The mean over the clients that have such a step; each client counts once. Steps that are
        zero or not finite are left out; a kind without any other step is absent.
        """
        step = _unit(self._step_to(merged))
        if step is None:
            return {}
        return {
            f"geometry/{kind}_step_cosine": (total @ step).item() / self._counts[kind]
            for kind, total in self._sums.items()
        }

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
