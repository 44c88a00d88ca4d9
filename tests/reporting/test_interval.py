"""The smallest gain that n seeds show, beside published tables and a simulation."""

import math

import numpy as np
import pytest
from scipy.special import stdtrit

from fedexp.reporting.families import stars_of
from fedexp.reporting.interval import (
    AtLeast,
    Interval,
    paired_difference,
    smallest_effect,
    smallest_gain,
)


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
    assert math.isnan(smallest_gain(Interval(0.0, 0.0, 3)))  # equal runs show nothing


def test_the_same_difference_in_each_seed_is_not_tested() -> None:
    """Accuracies are multiples of 1 / n; three equal differences are no certainty."""
    same = paired_difference({0: 0.95, 1: 0.90, 2: 0.92}, {0: 0.94, 1: 0.89, 2: 0.91})
    assert same is not None
    assert (same.has_spread, same.is_tested) == (False, False)
    assert math.isnan(same.p_value)
    assert stars_of([same]) == [""]
    equal = paired_difference({0: 0.5, 1: 0.6, 2: 0.7}, {0: 0.5, 1: 0.6, 2: 0.7})
    assert equal is not None
    assert (equal.is_tested, equal.excludes_zero, equal.p_value) == (True, False, 1.0)


def test_a_bound_below_the_other_cost_has_no_sign() -> None:
    """A run that compresses stops below the target with fewer bytes than the other one needs."""
    baseline = {0: 50.0, 1: 52.0, 2: 54.0}
    found = paired_difference({0: 9.0, 1: 8.0, 2: AtLeast(10.0)}, baseline)
    assert found is not None
    assert (found.n, found.at_bound, found.excludes_zero) == (3, 1, False)
    assert (math.isnan(found.mean), found.reason) == (True, "sign open")
    reverse = paired_difference(baseline, {0: 9.0, 1: 8.0, 2: AtLeast(10.0)})
    assert reverse is not None
    assert (math.isnan(reverse.mean), reverse.reason) == (True, "sign open")
    above = paired_difference({0: 9.0, 1: 8.0, 2: AtLeast(60.0)}, baseline)
    assert above is not None
    assert above.mean == pytest.approx((-41 - 44 + 6) / 3)
    both = paired_difference({0: 9.0, 1: AtLeast(60.0)}, {0: 8.0, 1: AtLeast(60.0)})
    assert both is not None
    assert (both.mean, both.reason) == (pytest.approx(0.5), "")


def test_a_target_that_one_side_never_reaches_is_told_from_the_other_s() -> None:
    reached, missed = {0: 40.0, 1: 42.0}, {0: AtLeast(100.0), 1: AtLeast(100.0)}
    for ours, baseline, reason in (
        (missed, reached, "target not reached"),
        (reached, missed, "baseline below target"),
        (missed, missed, "target not reached"),
    ):
        found = paired_difference(ours, baseline)
        assert found is not None
        assert (math.isnan(found.mean), found.reason) == (True, reason)
