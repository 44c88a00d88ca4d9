"""The one rule for a share of a number of things: it is rounded down."""

import math
from fractions import Fraction

_LARGEST_DENOMINATOR = 10**9


def rounded_down(share: float, count: int) -> int:
    """The product of ``share`` and ``count``, rounded down to a whole number.

    ``share`` stands for the nearest fraction with a denominator of at most 10^9. So 0.29 of 100 is
    29 and a third of 3 is 1, although the floats' product may be just below the whole number.
    """
    return math.floor(Fraction(share).limit_denominator(_LARGEST_DENOMINATOR) * count)
