"""Clients one after another, for debugging."""

from fedexp.samplers.base import Sampler


class RoundRobin(Sampler):
    """Clients in order of their numbers, K at a time, starting over after the last."""

    takes_tokens = True

    def select(self, round: int) -> list[int]:
        """The next K clients."""
        start = (round - 1) * self.cohort_size
        turns = range(start, start + self.cohort_size)
        return sorted(int(self.eligible[turn % len(self.eligible)]) for turn in turns)
