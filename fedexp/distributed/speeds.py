"""The speed of training at each rank."""

import time
from collections.abc import Iterable, Iterator, Sequence

from fedexp.core.messages import Update

_KEPT = 0.5
"""Factor by which the sums of earlier rounds shrink when a round is added."""


class Speeds:
    """The speed of each rank, in samples per second relative to the mean of all ranks.

    Args:
        num_ranks: number of ranks.
        measured: whether to measure; otherwise all ranks count as equally fast.
    """

    def __init__(self, num_ranks: int, measured: bool) -> None:
        self._measured = measured
        self._samples, self._seconds = [0.0] * num_ranks, [0.0] * num_ranks
        self._own = 0, 0.0

    def timed(self, updates: Iterable[Update]) -> Iterator[Update]:
        """Yield the updates of this rank's clients; measure the time until the last update."""
        start, samples = time.perf_counter(), 0
        for update in updates:
            samples += update.num_samples
            yield update
        self._own = samples, time.perf_counter() - start

    def own_round(self) -> tuple[int, float]:
        """Return this rank's (samples, seconds) of the latest ``timed``, and reset them to 0."""
        found, self._own = self._own, (0, 0.0)
        return found

    def add_round(self, of_ranks: Sequence[tuple[int, float]]) -> None:
        """Add each rank's samples and seconds; a rank without samples keeps its speed."""
        for rank, (samples, seconds) in enumerate(of_ranks):
            if samples:
                self._samples[rank] = _KEPT * self._samples[rank] + samples
                self._seconds[rank] = _KEPT * self._seconds[rank] + seconds

    def relative(self) -> list[float]:
        """Each rank's speed divided by the mean of the measured speeds; 1 if not measured."""
        pairs = list(zip(self._samples, self._seconds, strict=True))
        known = [samples / seconds for samples, seconds in pairs if seconds]
        if not (self._measured and known):
            return [1.0] * len(pairs)
        mean = sum(known) / len(known)
        return [samples / seconds / mean if seconds else 1.0 for samples, seconds in pairs]
