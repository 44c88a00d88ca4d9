"""Aggregators that compare updates, and so must see all of them at once."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fedexp.aggregators.base import Aggregator
from fedexp.messages import Tensors, Update
from fedexp.ranks import Share


class Gathered(Aggregator):
    """Keeps the cohort's weights until the round's end: K models of memory."""

    def __init__(self) -> None:
        self._updates: list[Update] = []

    def add(self, update: Update, current: Tensors) -> None:
        """Keep one update's weights."""
        self._updates.append(replace(update, extras={}, directions={}))

    def give(self) -> Share:
        """The updates themselves."""
        return Share(listed=self._updates)

    def take(self, sums: Tensors, listed: Sequence[list[Update]]) -> None:
        """The whole cohort's."""
        self._updates = list(chain(*listed))

    def merge(self, current: Tensors) -> Tensors:
        """What ``combine`` makes of them."""
        updates = sorted(self._updates, key=lambda update: update.client)
        self._updates = []
        return self.combine(updates, current) if updates else current

    def combine(self, updates: Sequence[Update], current: Tensors) -> Tensors:
        """The next global weights, given at least one update; they come sorted by client."""
        raise NotImplementedError


def whole_share(share: float, count: int) -> int:
    """share * count rounded down, but for what floats get wrong: 29 of 100 at 0.29."""
    return int(share * count + 1e-9)
