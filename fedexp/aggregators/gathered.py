"""Aggregators that compare updates, and so must see all of them at once."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from fedexp.core.messages import Tensors, Update
from fedexp.core.sockets import Aggregator
from fedexp.distributed.ranks import Contribution


class Gathered(Aggregator):
    """Keeps the cohort's weights until the round's end: K models of memory."""

    def __init__(self) -> None:
        self._updates: list[Update] = []

    def add(self, update: Update, current: Tensors) -> None:
        """Keep one update's weights."""
        self._updates.append(replace(update, extras={}, directions={}))

    def contribution(self) -> Contribution:
        """The updates themselves."""
        return Contribution(items=self._updates)

    def set_reduced(self, sums: Tensors, items: Sequence[list[Update]]) -> None:
        """The whole cohort's."""
        self._updates = list(chain(*items))

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
