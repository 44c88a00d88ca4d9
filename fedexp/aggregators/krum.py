"""Krum: the mean of the updates that are closest to their neighbours."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedexp.aggregators.average import Average
from fedexp.aggregators.robust import Robust, Tolerance
from fedexp.contract import PartUpdate, Setting, Tensors
from fedexp.errors import InputError


class Krum(Robust):
    """The mean of the m updates with the lowest scores (Blanchard et al., NeurIPS 2017, Section 4).

    K updates arrive, and f clients are assumed to be Byzantine. An update's score is the sum of its
    squared distances to the $K - f - 2$ nearest other updates. If scores are equal, the lowest
    client number comes first. The paper's guarantee needs $2f + 2 < K$ and identically distributed
    data; ``Tolerance`` says what happens if K is too small. With non-IID data benign updates are
    far apart, so the rule drops some benign updates too. A client that was drawn twice sends one of
    the K updates, but counts twice in the mean.

    Args:
        byzantine: the assumed share of Byzantine clients among the planned updates of a round. f is
            this number of updates, rounded down (``Tolerance``).
        keep: m, the number of updates to average, at most K - f. With m = 1 the rule is Krum, with
            a larger m it is multi-Krum. If None, m = K - f, which is our choice. Later code of two
            of the authors has m = K - f - 2.
    """

    def __init__(
        self, byzantine: Annotated[float, Field(gt=0, lt=0.5)], keep: PositiveInt | None
    ) -> None:
        super().__init__(Tolerance(f"aggregator.byzantine={byzantine:g}", 2, 3, byzantine))
        self.keep = keep

    def setup(self, setting: Setting) -> None:
        """Raise InputError if f is 0, or if the mean would include f assumed attackers."""
        super().setup(setting)
        updates = setting.most_updates
        most = updates - self.tolerance.among(updates)
        if self.keep is not None and self.keep > most:
            raise InputError(
                f"aggregator.keep={self.keep}: would average some of the {updates - most} assumed "
                f"attackers among {updates} updates; should be at most {most}"
            )

    def votes(self, updates: Sequence[PartUpdate]) -> int:
        """K, the number of clients: the scores count a client that was drawn twice once."""
        return len(updates)

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The mean of the m updates with the lowest Krum scores, not weighted by samples."""
        byzantine_clients = self.tolerance.among(len(updates))
        scores = krum_scores(squared_distances(updates, current), byzantine_clients)
        most = len(updates) - byzantine_clients
        best = scores.sort(stable=True).indices[: min(self.keep or most, most)]
        kept = [updates[index] for index in sorted(best.tolist())]
        return Average("uniform").of(kept, current)


def krum_scores(squares: Tensor, byzantine_clients: int) -> Tensor:
    """The Krum scores [K] of K updates, computed from their squared distances [K, K].

    An update's score is the sum of its squared distances to its K - f - 2 nearest other updates, or
    to the nearest one if this number is smaller than 1. f is ``byzantine_clients``.
    """
    nearest = max(1, len(squares) - byzantine_clients - 2)
    others = squares.clone().fill_diagonal_(torch.inf)
    return others.sort(dim=1).values[:, : min(nearest, len(squares) - 1)].sum(dim=1)


def squared_distances(updates: Sequence[PartUpdate], current: Tensors) -> Tensor:
    """The squared distances between the updates' float weights, float64 [K, K]."""
    inner = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name, before in current.items():
        if before.is_floating_point():
            # Steps are smaller than weights, so the subtraction below loses less precision.
            steps = torch.stack([(u.weights[name].double() - before).flatten() for u in updates])
            inner += (steps @ steps.T).cpu()
    squares = inner.diagonal()
    return (squares.unsqueeze(1) + squares - 2 * inner).clamp(min=0)
