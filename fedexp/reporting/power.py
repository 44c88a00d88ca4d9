"""The smallest gain that a comparison could have shown."""

from __future__ import annotations

import math
from functools import cache

from scipy.special import stdtrit

from fedexp.reporting.interval import Interval

POWER, LEVEL = 0.8, 0.05


def smallest_gain(found: Interval) -> float:
    """The smallest true gain that n seeds show with a probability of 80 %; NaN for one seed.

    A gain is shown if the two-sided paired t-test at 5 % rejects a gain of 0. The standard
    deviation of the differences is the observed one.
    """
    return smallest_effect(found.n) * found.deviation if found.n > 1 else math.nan


@cache
def smallest_effect(n: int) -> float:
    """``smallest_gain`` of n pairs, in standard deviations of the differences.

    With a true effect d, the t statistic has a noncentral t-distribution with n - 1 degrees of
    freedom and noncentrality d sqrt(n).
    """
    from scipy.optimize import brentq  # slow to import
    from scipy.stats import nct

    critical = float(stdtrit(n - 1, 1 - LEVEL / 2))

    def lacking(noncentrality: float) -> float:
        # A significant difference with the wrong sign is rarer than 1e-6 and left out.
        return float(nct.sf(critical, n - 1, noncentrality)) - POWER

    return float(brentq(lacking, 0, 2 * critical + 2)) / math.sqrt(n)
