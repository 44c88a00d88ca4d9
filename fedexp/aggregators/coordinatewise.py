"""Robust centres of each coordinate by itself (Yin et al., ICML 2018)."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from fedexp.aggregators.gathered import Gathered, whole_share
from fedexp.core.messages import Tensors, Update


class Coordinatewise(Gathered):
    """Each number of the next weights comes from the cohort's K values of that number.

    All clients count the same, one that was drawn twice counts twice. Integer buffers are taken
    from the client with the median number of samples, the lower of two: no client can claim it.
    """

    def combine(self, updates: Sequence[Update], current: Tensors) -> Tensors:
        """The centre of every coordinate."""
        by_size = sorted(updates, key=lambda update: update.num_samples)
        middle = by_size[(len(by_size) - 1) // 2]
        return {
            name: self._stacked_centre(updates, name)
            if value.is_floating_point()
            else middle.weights[name]
            for name, value in current.items()
        }

    def centre(self, values: Tensor) -> Tensor:
        """One value for each column of [K, ...] that is sorted along its first dimension."""
        raise NotImplementedError

    def _stacked_centre(self, updates: Sequence[Update], name: str) -> Tensor:
        values = torch.stack([u.weights[name] for u in updates for _ in range(u.draws)])
        return self.centre(values.sort(dim=0).values)


class Median(Coordinatewise):
    """The coordinate-wise median (Yin et al., Definition 1); of two in the middle, their mean."""

    def centre(self, values: Tensor) -> Tensor:
        """The middle."""
        low, high = values[(len(values) - 1) // 2], values[len(values) // 2]
        return (low + high) / 2


class TrimmedMean(Coordinatewise):
    """The coordinate-wise trimmed mean (Yin et al., Definition 2).

    Args:
        trim: beta, the share of the values that is left out at either end, rounded down. To hold,
            it must be at least the share of the cohort that lies.
    """

    def __init__(self, trim: Annotated[float, Field(ge=0, lt=0.5)]) -> None:
        super().__init__()
        self.trim = trim

    def centre(self, values: Tensor) -> Tensor:
        """The mean of what is left."""
        out = whole_share(self.trim, len(values))
        kept = values[out : len(values) - out]
        return kept.mean(dim=0, dtype=torch.float64).to(values.dtype)
