"""Corrections by hand, for four comparisons."""

import math

import pytest

from fedexp.reporting.families import corrected, stars, stars_of
from fedexp.reporting.interval import Interval, paired_difference


def test_corrected_p_values_by_hand() -> None:
    # Sorted: 0.01, 0.02, 0.03, 0.04. Holm: times 4, 3, 2, 1, ascending: 0.04, 0.06, 0.06, 0.06.
    # Benjamini and Hochberg: times 4/1, 4/2, 4/3, 4/4, descending from the largest: all 0.04.
    bh, holm = corrected([0.04, math.nan, 0.01, 0.03, 0.02])
    assert bh.tolist() == pytest.approx([0.04, math.nan, 0.04, 0.04, 0.04], nan_ok=True)
    assert holm.tolist() == pytest.approx([0.06, math.nan, 0.04, 0.06, 0.06], nan_ok=True)
    assert [each.tolist() for each in corrected([])] == [[], []]


def test_stars_count_what_a_gain_survives() -> None:
    assert stars(False, 0.01, 0.01) == ""
    assert [stars(True, *p) for p in ((0.1, 0.2), (0.04, 0.2), (0.04, 0.04))] == ["*", "**", "***"]


def test_a_family_makes_each_comparison_stricter() -> None:
    sure = paired_difference({0: 1.0, 1: 1.1, 2: 1.05}, dict.fromkeys(range(3), 0.0))
    unsure = paired_difference({0: 0.3, 1: 0.4, 2: 0.2}, dict.fromkeys(range(3), 0.0))
    none = [Interval(0.0, 0.1, 3)] * 8
    assert stars_of([sure, None, Interval(0.3, math.nan, 1)]) == ["***", "", ""]
    assert stars_of([unsure]) == ["***"]
    assert stars_of([sure, unsure, *none])[:2] == ["***", "*"]
