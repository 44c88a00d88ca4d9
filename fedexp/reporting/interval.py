"""The mean of paired differences over seeds, its interval, its test and the test's power."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE, POWER = 0.95, 0.8
NOT_REACHED, BASELINE_BELOW = "target not reached", "baseline below target"
SIGN_OPEN = "sign open"
"""Why there is no difference of costs to a target; see ``paired_difference``."""

_ROUNDING = 1e-9
"""Numbers that differ by less are equal."""


class AtLeast(float):
    """The cost of a target that a run did not reach: all its rounds, bytes or seconds.

    The true cost is at least this large. A mean over such values is a lower bound.
    """


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences over seeds, and its confidence interval.

    Attributes:
        mean: the mean difference.
        half_width: half the width of the interval; NaN for one pair.
        n: the number of pairs.
        at_bound: the number of pairs in which a run did not reach its target.
        reason: why there is no mean; empty if there is one, or if a value is not finite.
    """

    mean: float
    half_width: float
    n: int
    at_bound: int = 0
    reason: str = ""

    @property
    def has_spread(self) -> bool:
        """Whether the differences are not all the same; False for one pair."""
        return self.n > 1 and self.half_width > _ROUNDING

    @property
    def is_tested(self) -> bool:
        """Whether the pairs allow a statement.

        Fewer than three pairs are too few. Differences that are all the same, and not 0, have no
        spread to test with: on few test samples this happens by chance.
        """
        return self.n > 2 and (self.has_spread or abs(self.mean) <= _ROUNDING)

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside the interval; False for one pair."""
        return self.n > 1 and abs(self.mean) > self.half_width + _ROUNDING

    def contains(self, value: float) -> bool:
        """Whether ``value`` is inside the interval; False for one pair."""
        return self.n > 1 and abs(self.mean - value) <= self.half_width + _ROUNDING

    @property
    def deviation(self) -> float:
        """The standard deviation of the differences (n - 1); NaN for one pair."""
        return self.half_width * math.sqrt(self.n) / critical_value(self.n)

    @property
    def p_value(self) -> float:
        """The p-value of the two-sided paired t-test; NaN for one pair, or without spread.

        If all differences are 0, it is 1.
        """
        if not self.has_spread and abs(self.mean) > _ROUNDING:
            return math.nan
        return t_test(self.mean, self.deviation / math.sqrt(self.n), self.n - 1)


def paired_difference(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Interval | None:
    """The mean of ``ours - baseline`` over the n common seeds; None without common seeds.

    Runs with the same seed share partition, cohorts and batches, so their values form pairs.
    The 95 % interval is mean ± t s / sqrt(n), where s is the standard deviation of the differences
    and t the quantile of Student's t-distribution with n - 1 degrees of freedom. Values ``AtLeast``
    count like others; but mean and half width are NaN if all of ``ours`` or all of ``baseline`` are
    such values, or if such a value is below the other one of its pair: the true difference may then
    have either sign.
    """
    pairs = [(ours[seed], baseline[seed]) for seed in sorted(ours.keys() & baseline.keys())]
    if not pairs:
        return None
    n, at_bound = len(pairs), sum(any(map(_is_bound, pair)) for pair in pairs)
    if reason := _why_no_mean(pairs):
        return Interval(math.nan, math.nan, n, at_bound, reason)
    values = np.array([own - other for own, other in pairs])
    error = values.std(ddof=1) / math.sqrt(n) if n > 1 else math.nan
    return Interval(float(values.mean()), float(critical_value(n) * error), n, at_bound)


def _why_no_mean(pairs: Sequence[tuple[float, float]]) -> str:
    own, others = zip(*pairs, strict=True)
    if all(map(_is_bound, own)):
        return NOT_REACHED
    if all(map(_is_bound, others)):
        return BASELINE_BELOW
    is_open = any(_is_bound(min(pair)) and pair[0] != pair[1] for pair in pairs)
    return SIGN_OPEN if is_open else ""


def smallest_gain(found: Interval) -> float:
    """The smallest true gain that n seeds show with a probability of 80 %.

    It is NaN for one seed, and if all differences are the same number.

    A gain is shown if the two-sided paired t-test at 5 % rejects a gain of 0. The standard
    deviation of the differences is the observed one.
    """
    return smallest_effect(found.n) * found.deviation if found.has_spread else math.nan


@cache
def smallest_effect(n: int) -> float:
    """``smallest_gain`` of n pairs, in standard deviations of the differences.

    With a true effect d, the t statistic has a noncentral t-distribution with n - 1 degrees of
    freedom and noncentrality d sqrt(n).
    """
    from scipy.optimize import brentq  # slow to import
    from scipy.stats import nct

    critical = critical_value(n)

    def lacking(noncentrality: float) -> float:
        # A significant difference with the wrong sign is rarer than 1e-6 and left out.
        return float(nct.sf(critical, n - 1, noncentrality)) - POWER

    return float(brentq(lacking, 0, 2 * critical + 2)) / math.sqrt(n)


def t_test(estimate: float, error: float, freedom: int) -> float:
    """The two-sided p-value of an estimate with this standard error and degrees of freedom.

    NaN if the error is NaN. Without any error it is 0, or 1 if the estimate is 0, too.
    """
    if error < _ROUNDING:
        return float(abs(estimate) <= _ROUNDING)
    return float(2 * stdtr(freedom, -abs(estimate) / error))


def _is_bound(value: float) -> bool:
    return isinstance(value, AtLeast)


def critical_value(n: int) -> float:
    """Student's t for the 95 % interval of the mean of n pairs; NaN for one pair."""
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) if n > 1 else math.nan
