"""Effects, intervals and tests of factorial experiments; numbers by hand."""

import math

import numpy as np
import pytest
from scipy.stats import t

from fedexp.reporting.factorial.design import Design
from fedexp.reporting.factorial.effects import Fit, verdict


def design(names: str, generators: dict[str, list[str]] | None = None) -> Design:
    factors = {each: [{each: 0}, {each: 1}] for each in names}
    found = Design.read({"factors": factors, "generators": generators or {}})
    assert found is not None
    return found


# Combinations: a and b low; b high; a high; both high. The seeds' means are 3 and 4.5.
SMALL = Fit(design("ab"), np.array([[1.0, 2, 3, 6], [2, 4, 5, 7]]), smallest=0.5)


def test_estimates_and_intervals() -> None:
    # Means 1.5, 3, 4, 6.5: a = 5.25 - 2.25, b = 4.75 - 2.75, a x b = (3.5 - 2.5) / 2.
    assert SMALL.estimates.tolist() == [3, 2, 0.5]
    # All residuals are +-1/4, so their sum of squares is 1/2, with 8 - 2 - 3 degrees of freedom.
    assert SMALL.freedom == 3
    assert SMALL.deviation == pytest.approx(math.sqrt(1 / 6))
    assert SMALL.error == pytest.approx(2 * math.sqrt(1 / 6) / math.sqrt(8))
    assert SMALL.table["half_width"].tolist() == pytest.approx([3.182446 * 0.2886751] * 3)
    # Variance of the seeds' means 1.125, less 1/6 divided by 4.
    assert SMALL.seed_deviation == pytest.approx(math.sqrt(1.125 - 1 / 24))


def test_p_values_and_their_corrections() -> None:
    table = SMALL.table.set_index("effect")
    p = [2 * t.sf(x / SMALL.error, 3) for x in (3, 2, 0.5)]
    assert table["p_value"].tolist() == pytest.approx(p)
    assert table.loc["a", "p_corrected"] == pytest.approx(2 * p[0])  # Holm, of two main effects
    assert table.loc["b", "p_corrected"] == pytest.approx(p[1])
    assert table.loc["a x b", "p_corrected"] == pytest.approx(p[2])  # a family of one
    # The seeds' own estimates of a x b are 1 and 0: t = 1 with 1 degree of freedom, p = 1/2.
    assert table["p_by_seed"].tolist() == pytest.approx([0, 0, 0.5])
    assert table["verdict"].tolist() == ["larger than 0.5", "larger than 0.5", "not decided"]


def test_a_factor_that_changes_nothing_is_not_shown() -> None:
    """Sums of equal values in another order may differ in the last digit."""
    for seed in range(50):
        without = np.random.default_rng(seed).integers(100, 360, size=(3, 4)) / 360
        fit = Fit(design("abc"), np.concatenate([without, without], axis=1), smallest=0.015)
        table = fit.table.set_index("effect").loc[["a", "a x b", "a x c"]]
        assert (table[["p_value", "p_by_seed"]] > 0.999).all(axis=None)


def test_a_part_alone_loses_its_interactions() -> None:
    alone = SMALL.alone
    assert alone["estimate"].tolist() == [2.5, 1.5]  # 4 - 1.5 and 3 - 1.5: b and a are low
    assert alone["half_width"].tolist() == pytest.approx([math.sqrt(2) * 3.182446 * 0.2886751] * 2)
    # The seeds' own values are 2 and 3 for a, 1 and 2 for b: t is 5 and 3 with 1 degree of freedom.
    assert alone["p_by_seed"].tolist() == pytest.approx([2 * t.sf(x, 1) for x in (5, 3)])


def test_the_model_predicts_the_levels_of_two_factors() -> None:
    means = [SMALL.predicted(("a", "b"), signs) for signs in [(-1, -1), (-1, 1), (1, -1), (1, 1)]]
    assert means == pytest.approx([1.5, 3, 4, 6.5])


HALF = design("abcde", {"e": list("abcd")})


def test_known_effects_of_half_the_combinations_are_found_exactly() -> None:
    known = {("a",): 0.04, ("c",): -0.02, ("a", "b"): 0.01, ("d", "e"): -0.006}
    values = 0.5 + sum(np.array(HALF.column(e)) * size / 2 for e, size in known.items())
    fit = Fit(HALF, np.stack([values, values + 0.03, values - 0.01]), smallest=0.015)
    expected = [known.get(each, 0.0) for each in HALF.effects]
    assert fit.estimates.tolist() == pytest.approx(expected, abs=1e-12)
    assert fit.deviation == pytest.approx(0, abs=1e-12)
    assert fit.freedom == 30
    alone = dict(zip("abcde", fit.alone["estimate"], strict=True))
    # The interactions of a part have the opposite sign if the other factor is low.
    expected_alone = {"a": 0.03, "b": -0.01, "c": -0.02, "d": 0.006, "e": 0.006}
    assert alone == pytest.approx(expected_alone, abs=1e-12)


def test_the_closed_form_is_least_squares_with_the_seeds_as_blocks() -> None:
    values = np.random.default_rng(0).normal(size=(3, 16))
    fit = Fit(HALF, values, smallest=0.015)
    blocks = np.repeat(np.eye(3), 16, axis=0)
    regressors = np.hstack([blocks, np.tile(fit.columns, (3, 1)) / 2])
    solution, residual, rank, _ = np.linalg.lstsq(regressors, values.ravel(), rcond=None)
    freedom = 48 - rank
    assert freedom == fit.freedom
    assert fit.estimates.tolist() == pytest.approx(solution[3:].tolist())
    variance = float(residual[0]) / freedom
    assert fit.deviation**2 == pytest.approx(variance)
    covariance = variance * np.linalg.inv(regressors.T @ regressors)
    assert fit.error == pytest.approx(math.sqrt(covariance[3, 3]))


def test_seeds_that_the_smallest_effect_needs() -> None:
    fit = Fit(HALF, np.random.default_rng(1).normal(0, 0.02, (2, 16)), smallest=0.015)
    needed = fit.seeds_needed
    assert needed is not None

    def shown(n: int) -> float:
        freedom = 15 * (n - 1)
        factor = t.ppf(1 - 0.05 / 10, freedom) + t.ppf(0.8, freedom)
        return float(factor * 2 * fit.deviation / math.sqrt(16 * n))

    assert shown(needed) <= 0.015 < shown(needed - 1)
    assert fit.smallest_shown == pytest.approx(shown(2))


def test_one_seed_is_not_tested() -> None:
    fit = Fit(HALF, np.random.default_rng(2).normal(size=(1, 16)), smallest=0.015)
    assert fit.freedom == 0
    assert set(fit.table["verdict"]) == {"not tested"}
    assert fit.table[["p_value", "p_corrected", "p_by_seed"]].isna().all(axis=None)
    assert fit.seeds_needed is None


@pytest.mark.parametrize(
    ("estimate", "half_width", "p", "word"),
    [
        (-0.05, 0.02, 0.001, "larger than 0.015"),
        (0.05, 0.02, 0.2, "not decided"),  # a large family
        (0.004, 0.01, 0.4, "smaller than 0.015"),
        (0.02, 0.012, 0.01, "shown, size open"),
        (0.01, 0.02, 0.3, "not decided"),
    ],
)
def test_verdicts(estimate: float, half_width: float, p: float, word: str) -> None:
    assert verdict(estimate, half_width, p, 0.015) == word
