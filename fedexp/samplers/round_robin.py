"""Clients one after another, for debugging."""

import numpy as np

from fedexp.compatibility.traits import TAKES_STALE
from fedexp.samplers.base import Sampler


class RoundRobin(Sampler):
    """Clients in order of their numbers, K at a time, starting over after the last.

    A client that is not available is passed over.
    """

    takes_tokens = True
    traits = frozenset({TAKES_STALE})

    def select(self, round: int) -> list[int]:
        """The next K clients."""
        clients = len(self.with_data)
        start = (round - 1) * self.most_chosen
        turns = np.arange(start, start + clients) % clients
        following = self.with_data[turns[self.available[turns]]]
        return sorted(following[: self.cohort_size].tolist())
