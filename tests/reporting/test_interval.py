"""The smallest gain that n seeds show, beside published tables and a simulation."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from fedexp.reporting.interval import Interval, smallest_effect, smallest_gain


@pytest.mark.parametrize(("effect", "pairs"), [(0.2, 199), (0.5, 34), (0.8, 15)])
def test_cohens_numbers_of_pairs(effect: float, pairs: int) -> None:
    """Numbers of pairs for a power of 80 % at a two-sided 5 %, as in the tables of the t-test."""
    assert smallest_effect(pairs) <= effect < smallest_effect(pairs - 1)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_four_of_five_simulated_tests_show_it(n: int) -> None:
    differences = np.random.default_rng(0).standard_normal((40_000, n)) + smallest_effect(n)
    t = differences.mean(axis=1) / (differences.std(axis=1, ddof=1) / math.sqrt(n))
    assert np.mean(np.abs(t) > stdtrit(n - 1, 0.975)) == pytest.approx(0.8, abs=0.008)


def test_five_pairs_with_a_deviation_of_one() -> None:
    half_width = 2.776445 / math.sqrt(5)  # t(0.975; 4)
    assert smallest_gain(Interval(0.0, half_width, 5)) == pytest.approx(1.682, abs=1e-3)
    assert math.isnan(smallest_gain(Interval(0.1, math.nan, 1)))
