"""The number of attackers that a robust rule tolerates among the updates of a round."""

import math
from itertools import count

from fedexp.errors import InputError
from fedexp.rounding import rounded_down

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
        per_attacker: a, and
        more: b: the rule tolerates f attackers among at least a f + b updates.
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
