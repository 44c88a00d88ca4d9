"""The base of aggregators that tolerate a known number of attackers."""

import logging
from collections.abc import Sequence

from fedexp.aggregators.gathered import Gathered
from fedexp.aggregators.tolerance import Tolerance
from fedexp.core.messages import PartUpdate, Tensors
from fedexp.core.part import Setting

LOGGER = logging.getLogger(__name__)


class Robust(Gathered):
    """Merges updates only if the rule tolerates at least one attacker among them.

    Before the first round, a rule that would tolerate no attacker among the planned updates is an
    error. If too few updates arrive in a round, the rule does not become the mean: the global model
    stays as it was, and the first such round is logged.

    Metric: ``aggregator/tolerated``, the number f of attackers that the rule tolerated.

    Args:
        tolerance: computes f.
    """

    def __init__(self, tolerance: Tolerance) -> None:
        super().__init__()
        self.tolerance = tolerance
        self._tolerated = 0
        self._has_warned = False

    def setup(self, setting: Setting) -> None:
        """Raise InputError if the rule would tolerate no attacker among the planned updates."""
        self.tolerance.plan(setting.most_updates)

    def merge(self, current: Tensors) -> Tensors:
        """The result of ``combine``; ``current`` if too few updates arrived."""
        votes = self.votes(self._updates)
        self._tolerated = self.tolerance.among(votes)
        if self._updates and not self._tolerated:
            self._warn(votes)
            self._updates = []
        return super().merge(current)

    def votes(self, updates: Sequence[PartUpdate]) -> int:
        """n, the number of updates that the rule compares; a client drawn twice counts twice."""
        return sum(update.draws for update in updates)

    def metrics(self) -> dict[str, float]:
        """The number of attackers that the rule tolerated in the round."""
        return {"aggregator/tolerated": float(self._tolerated)}

    def _warn(self, votes: int) -> None:
        """Log the first round with too few updates."""
        if not self._has_warned:
            LOGGER.warning(
                "aggregator: %d updates arrived, too few to tolerate an attacker; in such rounds "
                "the global model stays as it was, and aggregator/tolerated is 0",
                votes,
            )
        self._has_warned = True
