"""What every aggregator is."""

from collections.abc import Sequence
from typing import Any

from fedexp.messages import Tensors, Update
from fedexp.parts import Part
from fedexp.ranks import Share


class Aggregator(Part):
    """Turns a cohort's weights into the next global weights.

    Updates are handed over as they arrive. An average folds them in, so that a cohort of any size
    needs the memory of one model; what must compare them keeps them until ``merge``.
    """

    def add(self, update: Update, current: Tensors) -> None:
        """Take in one update; ``current`` are the global weights that it started from."""
        raise NotImplementedError

    def give(self) -> Share:
        """What came in at this rank, where there are several; see ``Sharing``."""
        raise NotImplementedError

    def take(self, sums: Tensors, listed: Sequence[Any]) -> None:
        """Be as if all of the cohort's updates had come in here."""
        raise NotImplementedError

    def merge(self, current: Tensors) -> Tensors:
        """The next global weights, given the current ones; forgets the cohort.

        Without a single update the current weights stay.
        """
        raise NotImplementedError
