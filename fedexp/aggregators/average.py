"""Federated averaging."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedexp.compatibility.traits import DRAWS_BY_SIZE
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.reducible import Contribution
from fedexp.core.sockets import Aggregator


class Average(Aggregator):
    """w = sum_k a_k w_k / sum_k a_k, a_k = n_k (McMahan et al., AISTATS 2017, Alg. 1) or 1.

    Float buffers (BatchNorm statistics) are averaged like weights. Integer buffers are taken from
    the client with the most samples; ties go to the lowest client number. Sums are in
    float64: reordering the updates changes the result by far less than a float32 rounding.
    """

    _total: float
    _largest: tuple[int, int]
    _sums: Tensors
    _integers: Tensors

    def __init__(self, weighting: Literal["samples", "uniform"]) -> None:
        self.weighting = weighting
        if weighting == "samples":
            self.discourages = {
                DRAWS_BY_SIZE: "this sampler draws larger clients more often, and they also weigh "
                "more in the average; use aggregator=uniform"
            }
        self._reset()

    def weight_of(self, update: Update | PartUpdate) -> float:
        """a_k of an update."""
        return update.num_samples if self.weighting == "samples" else 1

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update to the sums."""
        factor = update.draws * self.weight_of(update)
        self._total += factor
        rank = (update.num_samples, -update.client)
        is_largest = rank > self._largest
        if is_largest:
            self._largest = rank
        for name, value in update.weights.items():
            if not value.is_floating_point():
                if is_largest:
                    self._integers[name] = value
            elif name in self._sums:
                self._sums[name].add_(value, alpha=factor)
            else:
                self._sums[name] = value.to(torch.float64) * factor

    def contribution(self) -> Contribution:
        """What this process adds to the average over all processes.

        It is the sums of a_k w_k, the total sum_k a_k, and the integer buffers of the client with
        the most samples, together with that client's rank: its samples, then minus its number.
        """
        return Contribution(self._sums, (self._total, self._largest, self._integers))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's sums by the sums over all processes."""
        totals, largest, integers = zip(*items, strict=True)
        self._sums, self._total, self._largest = sums, sum(totals), max(largest)
        self._integers = integers[largest.index(self._largest)]

    def merge(self, current: Tensors) -> Tensors:
        """The average of the cohort."""
        if not self._total:
            return current
        average = {
            name: (s / self._total).to(current[name].dtype) for name, s in self._sums.items()
        }
        merged = average | self._integers
        self._reset()
        return {name: merged[name] for name in current}

    def _reset(self) -> None:
        self._total = 0
        self._largest = (-1, 0)
        self._sums = {}
        self._integers = {}
