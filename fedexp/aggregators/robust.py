"""The base of aggregators that tolerate a known number of attackers."""

import logging
import math
from collections.abc import Sequence
from itertools import count

from fedexp.aggregators.gathered import Gathered
from fedexp.contract import PartUpdate, Setting, Tensors
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

LOGGER = logging.getLogger(__name__)
_WHERE = "updates in a round (clients.per_round, or coordination.buffer)"


class Tolerance:
    """f, the number of attackers that a rule tolerates among the n updates of a server step.

    The papers give f as a number, the config as a share s of the planned updates. A share s of n
    updates is at most s n attackers, so f is s n rounded down. If f were 0, the rule would be the
    mean, so ``plan`` refuses such a share. Clients that drop out do not lower f, because all
    attackers may be among the other clients. If fewer updates arrive than the rule needs for f, the
    largest number that the rule allows among them takes the place of f; it may be 0.

    Args:
        subject: key and value for errors, such as ``aggregator.trim=0.2``.
        per_attacker: a; the rule tolerates f attackers among at least a f + b updates.
        more: b.
        share: s; None if the rule assumes no number: f is then the largest number that it allows.
    """

    def __init__(
        self, subject: str, per_attacker: int, more: int, share: float | None = None
    ) -> None:
        self.subject, self.per_attacker, self.more, self.share = subject, per_attacker, more, share
        self._planned: int | None = None

    def plan(self, updates: int) -> None:
        """Fix f for the run, in which a round has at most this many updates.

        Raises:
            InputError: f is 0, or too large for the number of updates.
        """
        if reason := self._reason_against(updates):
            raise InputError(f"{self.subject}: {reason}")
        self._planned = self.assumed(updates)

    def among(self, updates: int) -> int:
        """The number of attackers that the rule tolerates among the updates that arrived."""
        planned = self.assumed(updates) if self._planned is None else self._planned
        return min(planned, self.largest(updates))

    def assumed(self, updates: int) -> int:
        """f for this number of planned updates."""
        if self.share is None:
            return self.largest(updates)
        return rounded_down(self.share, updates)

    def largest(self, updates: int) -> int:
        """The largest number of attackers that the rule allows among this many updates."""
        return max(0, (updates - self.more) // self.per_attacker)

    def least(self, attackers: int) -> int:
        """The smallest number of updates among which the rule tolerates this many attackers."""
        return self.per_attacker * attackers + self.more

    def _reason_against(self, updates: int) -> str:
        """Why the rule cannot work with this many updates, and what would help; "" if it can."""
        attackers, largest = self.assumed(updates), self.largest(updates)
        enough = f"{self._enough(updates)} {_WHERE}"
        if not largest:
            return f"tolerates no attacker among {updates} updates; use at least {enough}"
        if not attackers:
            least = _share_for(1, updates)
            return (
                f"tolerates no attacker among {updates} updates, because the share is rounded down "
                f"to 0; use a share of at least {least:g}, or at least {enough}"
            )
        if attackers > largest:
            return (
                f"{attackers} attackers among {updates} updates need at least "
                f"{self.least(attackers)} updates; use the share {_share_for(largest, updates):g} "
                f"for {largest}, or at least {enough}"
            )
        return ""

    def _enough(self, updates: int) -> int:
        """The smallest larger number of updates for which f is above 0 and not too large."""
        first = 1 if self.share is None else math.floor(1 / self.share)  # below, f is 0
        numbers = count(max(updates + 1, first))
        return next(n for n in numbers if 0 < self.assumed(n) <= self.largest(n))


def _share_for(attackers: int, updates: int) -> float:
    """A share of the updates that is rounded down to this many attackers, with few digits."""
    digits = float(10 ** (len(str(updates)) + 2))
    return math.ceil(attackers / updates * digits - 1e-6) / digits


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
