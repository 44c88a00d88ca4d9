"""Robust aggregation of each coordinate separately (Yin et al., ICML 2018)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedexp.aggregators.gathered import middle_by_size
from fedexp.aggregators.robust import Robust, Tolerance
from fedexp.core.messages import PartUpdate, Tensors


class Coordinatewise(Robust):
    """Each coordinate of the next weights is a statistic of the K clients' values.

    All clients have the same weight; a client that was drawn twice counts twice. Integer buffers
    are taken from the client with the median number of samples.
    """

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The next weights: the statistic of every coordinate."""
        middle = middle_by_size(updates)
        return {
            name: self._combined(updates, name)
            if value.is_floating_point()
            else middle.weights[name]
            for name, value in current.items()
        }

    def statistic(self, values: Tensor) -> Tensor:
        """The statistic [...] of the clients' ``values`` [K, ...], sorted along dimension 0."""
        raise NotImplementedError

    def _combined(self, updates: Sequence[PartUpdate], name: str) -> Tensor:
        values = torch.stack([u.weights[name] for u in updates for _ in range(u.draws)])
        return self.statistic(values.sort(dim=0).values)


class Median(Coordinatewise):
    """The coordinate-wise median (Yin et al., Def. 1); for an even K the mean of the middle two.

    The median of one or two values is their mean, so the rule needs three updates.
    """

    def __init__(self) -> None:
        super().__init__(Tolerance("aggregator=median", 2, 1))

    def statistic(self, values: Tensor) -> Tensor:
        """The median of sorted ``values``."""
        low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
        return (low + high) / 2


class TrimmedMean(Coordinatewise):
    """The coordinate-wise trimmed mean (Yin et al., Definition 2).

    Args:
        trim: beta, at least the share of Byzantine clients among the planned updates of a round. f,
            the number of values to leave out at each end, is this number of updates, rounded down
            (``Tolerance``).
    """

    def __init__(self, trim: Annotated[float, Field(gt=0, lt=0.5)]) -> None:
        super().__init__(Tolerance(f"aggregator.trim={trim:g}", 2, 1, trim))

    def statistic(self, values: Tensor) -> Tensor:
        """The mean of sorted ``values`` without the f smallest and the f largest ones."""
        out = self.tolerance.among(len(values))
        kept = values[out : len(values) - out]
        return kept.mean(dim=0, dtype=torch.float64).to(values.dtype)


def mean_around_median(values: Tensor, count: int) -> Tensor:
    """The mean [...] of the ``count`` values closest to the median of ``values`` [K, ...].

    The values are sorted along the first dimension. For an even K the median is the lower of the
    two middle values. If two values are equally close, the smaller is chosen first.
    """
    distances = (values - values[(len(values) - 1) // 2]).abs()
    closest = distances.sort(dim=0, stable=True).indices[:count]
    return values.gather(0, closest).mean(dim=0, dtype=torch.float64).to(values.dtype)
