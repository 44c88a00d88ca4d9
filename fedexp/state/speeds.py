"""How fast each rank trains."""

import time
from collections.abc import Iterable, Iterator, Sequence

from fedexp.core.messages import Update

_KEPT = 0.5
"""Weight of all earlier rounds together when the next one is added."""


class Speeds:
    """Samples a second of each rank relative to their mean, over the rounds so far.

    Args:
        num_ranks: how many.
        measured: whether they are measured; if not, all ranks count as equally fast.
    """

    def __init__(self, num_ranks: int, measured: bool) -> None:
        self._measured = measured
        self._samples, self._seconds = [0.0] * num_ranks, [0.0] * num_ranks
        self._own = 0, 0.0

    def timed(self, updates: Iterable[Update]) -> Iterator[Update]:
        """The same updates of this rank's clients; measures how long it takes until the last."""
        start, samples = time.perf_counter(), 0
        for update in updates:
            samples += update.num_samples
            yield update
        self._own = samples, time.perf_counter() - start

    def own_round(self) -> tuple[int, float]:
        """Samples and seconds of this rank in the round that has been timed; then none."""
        found, self._own = self._own, (0, 0.0)
        return found

    def add_round(self, of_ranks: Sequence[tuple[int, float]]) -> None:
        """Take over what ``own_round`` gave at every rank; ranks without samples keep theirs."""
        for rank, (samples, seconds) in enumerate(of_ranks):
            if samples:
                self._samples[rank] = _KEPT * self._samples[rank] + samples
                self._seconds[rank] = _KEPT * self._seconds[rank] + seconds

    def relative(self) -> list[float]:
        """The speed of each rank over the mean of those measured; 1 where it is not."""
        pairs = list(zip(self._samples, self._seconds, strict=True))
        known = [samples / seconds for samples, seconds in pairs if seconds]
        if not (self._measured and known):
            return [1.0] * len(pairs)
        mean = sum(known) / len(known)
        return [samples / seconds / mean if seconds else 1.0 for samples, seconds in pairs]
