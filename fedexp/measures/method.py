"""The metrics and figures that the method's parts define."""

import logging
from collections.abc import Mapping
from types import MappingProxyType

from matplotlib.figure import Figure

from fedexp.core.part import Memory, Part
from fedexp.measures.measure import AfterRound, Measure, Measured

LOGGER = logging.getLogger(__name__)
_CORRELATION = "_spearman"
"""Ending of the name of a metric that is the rank correlation of an estimate with the truth."""
_UNINFORMATIVE = 0.2
_PATIENCE = 5


class Method(Measure):
    """Records the parts' metrics after each round, and the parts' figures after the last round.

    A metric ``*_spearman`` is the rank correlation of a part's estimate with the truth. If it stays
    below 0.2 for five rounds in a row, the run warns once that the estimate is useless.
    """

    directions = MappingProxyType({"privacy/epsilon": "lower", f"*{_CORRELATION}": "higher"})

    def __init__(self) -> None:
        self._low: dict[str, int] = {}
        self._warned: set[str] = set()

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics of the method's parts; after the last round also the parts' figures."""
        figures: dict[str, Figure] = {}
        if after.is_last:
            for name, part in after.server.parts.items():
                if type(part).figures is not Part.figures:
                    memories = _memories(after, name)
                    if after.ranks.is_first:
                        figures |= part.figures(memories, after.data.description)
        metrics = after.server.metrics()
        if after.ranks.is_first:
            self._warn(metrics)
        return Measured(metrics=metrics, figures=figures)

    def _warn(self, metrics: Mapping[str, float]) -> None:
        """Warn if a rank correlation has been low for ``_PATIENCE`` rounds in a row."""
        for name in (each for each in metrics if each.endswith(_CORRELATION)):
            rounds = self._low.get(name, 0) + 1 if metrics[name] < _UNINFORMATIVE else 0
            self._low[name] = rounds
            if rounds == _PATIENCE and name not in self._warned:
                self._warned.add(name)
                LOGGER.warning(
                    "%s has been below %g for %d rounds: what the method estimates does not rank "
                    "the clients, so it chooses without knowing them; try another sampler.signal "
                    "or sampler.temperature",
                    *(name, _UNINFORMATIVE, rounds),
                )


def _memories(after: AfterRound, name: str) -> Mapping[int, Memory]:
    """Client -> its memory for the part, for all processes' clients; every process calls this."""
    own = after.resources.store.memories(name)
    if after.ranks.size == 1:
        return own  # reads a memory from disk when it is used
    return dict(after.ranks.gather_pairs(own.items()))
