"""A sampler that chooses clients one after another, for debugging."""

import numpy as np

from fedexp.samplers.base import Sampler


class RoundRobin(Sampler):
    """Chooses clients in the order of their numbers, K in each round; the first follows the last.

    A client that is not available is skipped, and the next available client takes its place. Round
    t begins at the same client whether or not clients were skipped before. The sampler counts on a
    cohort of K in each round, so ``coordination=buffered``, which fills only some places, is
    refused.
    """

    takes_tokens = True

    def select(self, round: int) -> list[int]:
        """Choose the next available clients, ``cohort_size`` of them."""
        clients = len(self.with_data)
        start = (round - 1) * self.most_chosen
        turns = np.arange(start, start + clients) % clients
        following = self.with_data[turns[self.available[turns]]]
        return sorted(following[: self.cohort_size].tolist())
