"""Repeated runs against the earlier ones, by hand: one cell, four methods."""

import math

import pandas as pd
import pytest

from fedexp.reporting.leaderboard.repetition import expected_inside, repetition, verdicts_again

COLUMNS = ["cell", "method", "setting", "seed", "trial", "score", "global accuracy"]


def results(first_seed: int, **accuracies: tuple[float, ...]) -> pd.DataFrame:
    """Final runs of preset settings in the cell ``a``."""
    rows = [
        ["a", name, "", first_seed + seed, 0, math.nan, value]
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    return frame.assign(objective="", control="", budgets="", **{"personal accuracy": math.nan})


BEFORE = results(
    0,
    fedavg=(0.5, 0.5, 0.5),
    ahead=(0.6, 0.61, 0.62),  # gain 0.11 with the interval ± 4.30 * 0.01 / sqrt(3) = 0.025
    odd=(0.3, 0.5, 0.6),  # level
    behind=(0.40, 0.41, 0.42),
    gone=(0.9, 0.91, 0.89),
)


def test_a_row_by_hand() -> None:
    now = results(
        7,
        fedavg=(0.5, 0.5, 0.5, 0.5),
        ahead=(0.60, 0.63, 0.66, 0.61),  # 0.125: inside, ahead again: ± 3.18 * 0.0132
        odd=(0.4, 0.4, 0.4, 0.4),  # -0.1 is inside its wide interval
        behind=(0.55, 0.56, 0.55, 0.54),  # 0.05: outside, the opposite sign
    )
    table = repetition(now, BEFORE)
    (row,) = table.rows
    # Orders, best first: ahead fedavg odd behind; ahead behind fedavg odd: 4 of 6 pairs agree.
    assert row[:5] == ["global accuracy", "a", "4", "0.33", "behind: 4 to 2"]
    expected = 3 * expected_inside(3, 4)
    assert row[5:] == ["2 of 3", f"{expected:.1f}", "1 of 2", "1"]
    assert len(table.columns) == len(row)


def test_verdicts_that_are_there_again_by_hand() -> None:
    now = results(
        7,
        fedavg=(0.5, 0.5, 0.5),
        ahead=(0.62, 0.63, 0.70),  # 0.15 ± 0.108: ahead again
        odd=(0.9, 0.91, 0.92),  # was level: does not count
        behind=(0.3, 0.48, 0.5),  # -0.073 ± 0.27: the same direction alone
    )
    # The p-values before: 0.003 and 0.012 of the gains ± 0.11 and ∓ 0.09, and of the level one.
    alone, bh, holm = verdicts_again(now, BEFORE).rows
    assert alone == ["global accuracy", "alone", "2", "1", "2", "0"]
    assert bh == ["global accuracy", "after Benjamini and Hochberg", "2", "1", "2", "0"]
    assert holm == ["global accuracy", "after Holm", "2", "1", "2", "0"]
    level = results(7, fedavg=(0.5, 0.5, 0.5), behind=(0.4, 0.5, 0.6))  # 0 is no direction
    assert verdicts_again(level, BEFORE).rows[0][2:] == ["1", "0", "0", "0"]
    turned = results(7, fedavg=(0.5, 0.5, 0.5), ahead=(0.3, 0.31, 0.32))
    assert verdicts_again(turned, BEFORE).rows[0][2:] == ["1", "0", "0", "1"]


def test_methods_with_another_setting_are_left_out() -> None:
    now = BEFORE.assign(setting=["optimizer.lr=1" if m == "odd" else "" for m in BEFORE["method"]])
    (row,) = repetition(now, BEFORE).rows
    assert row[2:] == ["4", "1.00", "none", "3 of 3", row[6], "3 of 3", "0"]


def test_a_method_with_fedavg_s_own_model_has_no_interval_to_repeat() -> None:
    before = results(0, fedavg=(0.5, 0.6, 0.7), same=(0.5, 0.6, 0.7), ahead=(0.6, 0.71, 0.82))
    now = results(7, fedavg=(0.5, 0.6, 0.7), same=(0.5, 0.6, 0.7), ahead=(0.61, 0.70, 0.82))
    (row,) = repetition(now, before).rows
    assert (row[2], row[5], row[7]) == ("3", "1 of 1", "1 of 1")


def test_without_an_order_there_is_no_tau() -> None:
    equal = results(0, fedavg=(0.5, 0.5, 0.5), same=(0.5, 0.5, 0.5))
    (row,) = repetition(equal, equal).rows
    assert row[2:5] == ["2", "", "none"]


def test_the_expected_share_is_that_of_the_t_distribution() -> None:
    def within(t: float) -> float:
        """The probability of (-t, t) with 4 degrees of freedom."""
        x = 1 + t * t / 4
        return 2 * 3 / 8 * t / math.sqrt(x) * (1 - t * t / x / 12)

    assert within(2.7764451) == pytest.approx(0.95)
    assert expected_inside(5, 5) == pytest.approx(within(2.7764451 / math.sqrt(2)))
    assert expected_inside(5, 10) == pytest.approx(within(2.7764451 / math.sqrt(1.5)))
    assert expected_inside(5, 10**9) == pytest.approx(0.95)
