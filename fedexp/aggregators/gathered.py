"""The base of aggregators that need all updates together."""

from abc import abstractmethod
from collections.abc import Sequence
from itertools import chain

from fedexp.config.compatibility.traits import NOT_THE_MEAN
from fedexp.contract import Aggregator, Contribution, PartUpdate, Tensors, Update


class Gathered(Aggregator):
    """Keeps the K clients' updates until the end of the round: needs memory for K models."""

    traits = frozenset({NOT_THE_MEAN})

    def __init__(self) -> None:
        self._updates: list[PartUpdate] = []

    def add(self, update: Update, current: Tensors) -> None:
        """Keep a client's weights and the extras that the aggregator's client half sent."""
        self._updates.append(update.to("aggregator"))

    def contribution(self) -> Contribution:
        """The updates of this process's clients."""
        return Contribution(items=self._updates)

    def set_reduced(self, sums: Tensors, items: Sequence[list[PartUpdate]]) -> None:
        """Replace this process's updates by the updates of all processes."""
        self._updates = list(chain(*items))

    def merge(self, current: Tensors) -> Tensors:
        """Return the result of ``combine``, or ``current`` if there are no updates."""
        updates = sorted(self._updates, key=lambda update: update.client)
        self._updates = []
        return self.combine(updates, current) if updates else current

    @abstractmethod
    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """Compute the next global weights from one or more updates, sorted by client number."""
        raise NotImplementedError


def middle_by_size(updates: Sequence[PartUpdate]) -> PartUpdate:
    """The update with the median number of samples; if two are in the middle, the smaller one.

    So a client cannot make the server choose its update by reporting a huge number of samples.
    """
    by_size = sorted(updates, key=lambda update: update.num_samples)
    return by_size[(len(by_size) - 1) // 2]
