"""Federated averaging."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import torch

from fedexp.config.compatibility.traits import DRAWS_BY_SIZE
from fedexp.contract import Aggregator, Contribution, PartUpdate, Tensors, Update

Weighting = Literal["samples", "uniform"]
"""A client's weight in an average: its number of samples, or 1."""

LARGE_CLIENTS_TWICE = {
    DRAWS_BY_SIZE: "this sampler draws larger clients more often, and they also weigh "
    "more in the average; use aggregator=uniform"
}
"""The value of ``discourages`` for aggregators that give larger clients larger weights."""


class Average(Aggregator):
    """The weighted average of the clients' models (FedAvg).

    $w = sum_k a_k w_k / sum_k a_k$, where w_k are the weights of client k. The factor a_k is the
    client's number of samples n_k (McMahan et al., AISTATS 2017, Alg. 1) or 1. A subclass may use
    other factors. A client that was drawn several times counts several times.

    Float buffers (BatchNorm statistics) are averaged like weights. Integer buffers are copied from
    the client with the most samples. If several clients have the most, the client with the lowest
    number is chosen. The sums are in float64, so the order of the updates changes the result by far
    less than the rounding to float32.

    Attributes:
        total: the sum of the factors of the updates added so far; see ``factor``.
        numbers: one number of each update added so far, if a subclass appends it in ``add``.
    """

    total: float
    numbers: list[float]
    _largest: tuple[int, int]
    _sums: Tensors
    _integers: Tensors

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting
        if weighting == "samples":
            self.discourages = {**self.discourages, **LARGE_CLIENTS_TWICE}
        self._reset()

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update to the sums."""
        own = of_aggregator(update)
        self.add_weighted(own, self.factor(own))

    def factor(self, update: PartUpdate) -> float:
        """The update's factor: a_k times how often the client was drawn for the cohort.

        a_k is the client's number of samples, or 1 with uniform weights.
        """
        return update.draws * (update.num_samples if self.weighting == "samples" else 1)

    def add_weighted(self, update: PartUpdate, factor: float) -> None:
        """Add one update to the sums, multiplied by ``factor``."""
        self.total += factor
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
        """This process's share of the average over all processes.

        It holds sum_k a_k w_k, the total sum_k a_k, and the integer buffers of the client with the
        most samples. It also holds the pair (number of samples, minus the client's number) of that
        client: the process with the largest pair provides the integer buffers.
        """
        items = (self.total, self._largest, self._integers, self.numbers)
        return Contribution(self._sums, items)

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's sums by the sums over all processes."""
        totals, largest, integers, numbers = zip(*items, strict=True)
        self._sums, self.total, self._largest = sums, sum(totals), max(largest)
        self._integers = integers[largest.index(self._largest)]
        self.numbers = list(chain(*numbers))

    def merge(self, current: Tensors) -> Tensors:
        """Return the average of the cohort's models, or ``current`` if the factors' sum is 0."""
        if not self.total:
            self._reset()
            return current
        average = {name: (s / self.total).to(current[name].dtype) for name, s in self._sums.items()}
        merged = average | self._integers
        self._reset()
        return {name: merged[name] for name in current}

    def of(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The average of these updates."""
        for update in updates:
            self.add(update, current)
        return self.merge(current)

    def _reset(self) -> None:
        self.total, self.numbers = 0, []
        self._largest = (-1, 0)
        self._sums = {}
        self._integers = {}


def of_aggregator(update: Update | PartUpdate) -> PartUpdate:
    """The update with only those extras that the aggregator's code at the client has sent."""
    return update.to("aggregator") if isinstance(update, Update) else update
