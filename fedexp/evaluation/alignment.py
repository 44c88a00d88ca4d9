"""How well steps point where the federation then goes (FedPTR, Figure 2)."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from fedexp.messages import Tensors, Update
from fedexp.ranks import Share


class Alignment:
    """Stands between clients and server for one round: cosines of steps with the global step.

    Compared are the clients' own steps w_k - w^t and every direction that they note, with
    w^{t+1} - w^t. The mean cosine with g is the mean unit vector's product with g / |g|: one sum in
    float64 for each kind of step is all that is kept, whatever the size of the cohort.

    Args:
        start: w^t, what the clients start from.
        parameters: names of the parameters to compare, as one vector; buffers have no direction.
    """

    def __init__(self, start: Tensors, parameters: Collection[str]) -> None:
        self._start = {name: start[name].double() for name in start if name in parameters}
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def watch(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates."""
        for update in updates:
            self._note("local", self._step_to(update.weights))
            for name, direction in update.directions.items():
                self._note(name, self._flatten(direction))
            yield update

    def give(self) -> Share:
        """The sums of this rank's steps, and of how many."""
        return Share(self._sums, self._counts)

    def take(self, sums: Tensors, listed: Sequence[Counter[str]]) -> None:
        """Those of all steps."""
        self._sums, self._counts = sums, sum(listed, Counter())

    def metrics(self, merged: Tensors) -> dict[str, float]:
        """``geometry/<kind>_step_cosine`` for each kind of step, given w^{t+1}.

        The mean over the clients that took one, a client counting once. Steps of length zero have
        no direction and are left out; so is a kind of which nothing is left.
        """
        step = _unit(self._step_to(merged))
        if step is None:
            return {}
        return {
            f"geometry/{kind}_step_cosine": (total @ step).item() / self._counts[kind]
            for kind, total in self._sums.items()
        }

    def _note(self, kind: str, step: Tensor) -> None:
        unit = _unit(step)
        if unit is not None:
            self._sums[kind] = self._sums[kind].add_(unit) if kind in self._sums else unit
            self._counts[kind] += 1

    def _step_to(self, weights: Tensors) -> Tensor:
        return self._flatten({n: weights[n] - before for n, before in self._start.items()})

    def _flatten(self, step: Tensors) -> Tensor:
        """One float64 vector; a parameter that the step does not name has not moved."""
        moves = [
            step[name].to(before) if name in step else torch.zeros_like(before)
            for name, before in self._start.items()
        ]
        return torch.cat([move.flatten() for move in moves]) if moves else torch.zeros(0)


def _unit(step: Tensor) -> Tensor | None:
    """The step's direction; None if it has none: it is zero or not finite."""
    length = step.norm()
    return step / length if 0 < length < torch.inf else None
