"""Federated averaging."""

from collections.abc import Sequence
from typing import Any, Literal

import torch

from fedexp.core.compatibility import DRAWS_BY_SIZE
from fedexp.core.messages import Tensors, Update
from fedexp.core.sockets import Aggregator
from fedexp.distributed.ranks import Contribution


class Average(Aggregator):
    """w = sum_k a_k w_k / sum_k a_k, a_k = n_k (McMahan et al., AISTATS 2017, Alg. 1) or 1.

    Float buffers (BatchNorm statistics) are averaged like weights; integer buffers are taken from
    the client with the most samples, the lowest-numbered of several. The sums are float64: what is
    left of the order in which updates arrive is far below one float32 rounding.
    """

    _mass: int
    _largest: tuple[int, int]
    _sums: Tensors
    _integers: Tensors

    def __init__(self, weighting: Literal["samples", "uniform"]) -> None:
        self.weighting = weighting
        if weighting == "samples":
            self.discourages = {
                DRAWS_BY_SIZE: "larger clients are drawn more often and weigh more too: with this "
                "sampler take aggregator=uniform"
            }
        self._forget()

    def add(self, update: Update, current: Tensors) -> None:
        """Fold in one update."""
        mass = update.draws * (update.num_samples if self.weighting == "samples" else 1)
        self._mass += mass
        rank = (update.num_samples, -update.client)
        is_largest = rank > self._largest
        if is_largest:
            self._largest = rank
        for name, value in update.weights.items():
            if not value.is_floating_point():
                if is_largest:
                    self._integers[name] = value
            elif name in self._sums:
                self._sums[name].add_(value, alpha=mass)
            else:
                self._sums[name] = value.to(torch.float64) * mass

    def contribution(self) -> Contribution:
        """The sums; their mass, and the integer buffers with whose they are."""
        return Contribution(self._sums, (self._mass, self._largest, self._integers))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """The whole cohort's."""
        masses, largest, integers = zip(*items, strict=True)
        self._sums, self._mass, self._largest = sums, sum(masses), max(largest)
        self._integers = integers[largest.index(self._largest)]

    def merge(self, current: Tensors) -> Tensors:
        """The average of what came in."""
        if not self._mass:
            return current
        average = {name: (s / self._mass).to(current[name].dtype) for name, s in self._sums.items()}
        merged = average | self._integers
        self._forget()
        return {name: merged[name] for name in current}

    def _forget(self) -> None:
        self._mass = 0
        self._largest = (-1, 0)
        self._sums = {}
        self._integers = {}
