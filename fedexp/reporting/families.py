"""Corrections for a family of comparisons: Benjamini and Hochberg's, and Holm's.

Of a hundred comparisons of equal methods, about five have a 95 % interval that excludes 0. The
correction of Benjamini and Hochberg (1995) bounds the expected share of errors among the gains that
remain. Holm's correction (1979) bounds the probability of even one error. Both bounds are 5 %.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedexp.reporting.interval import Interval

Floats = NDArray[np.floating[Any]]
LEVEL = 0.05


def corrected(p_values: Sequence[float]) -> tuple[Floats, Floats]:
    """The adjusted p-values of one family: Benjamini and Hochberg's, then Holm's.

    A p-value of NaN (one seed) is not in the family and stays NaN.
    """
    p = np.asarray(p_values, dtype=float)
    tested = ~np.isnan(p)
    bh, holm = np.full(len(p), math.nan), np.full(len(p), math.nan)
    if tested.any():
        from scipy.stats import false_discovery_control  # slow to import

        bh[tested] = false_discovery_control(p[tested])
        holm[tested] = _holm(p[tested])
    return bh, holm


def stars(excludes_zero: bool, bh: float, holm: float) -> str:
    """One star if the interval excludes 0, two also after Benjamini-Hochberg, three after Holm.

    Args:
        excludes_zero: whether the 95 % interval excludes 0.
        bh: the p-value adjusted by Benjamini and Hochberg.
        holm: the p-value adjusted by Holm.
    """
    return "*" * (1 + (bh <= LEVEL) + (holm <= LEVEL)) if excludes_zero else ""


def stars_of(gains: Sequence[Interval | None]) -> list[str]:
    """The stars of each comparison of one family; empty for None and for untested ones."""
    tested = [gain if gain and gain.is_tested else None for gain in gains]
    p_values = [math.nan if gain is None else gain.p_value for gain in tested]
    return [
        "" if gain is None else stars(gain.excludes_zero, *both)
        for gain, both in zip(tested, zip(*corrected(p_values), strict=True), strict=True)
    ]


def _holm(p: Floats) -> Floats:
    """The smallest p-value times n, the next times n - 1 and so on, ascending and at most 1."""
    order, adjusted = np.argsort(p), np.empty(len(p))
    factors = np.arange(len(p), 0, -1)
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * p[order]))
    return adjusted
