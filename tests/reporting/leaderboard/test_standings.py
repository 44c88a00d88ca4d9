"""Standings by hand: two cells, three methods, three seeds."""

import math

import pandas as pd
import pytest

from fedexp.reporting.interval import Interval
from fedexp.reporting.leaderboard.results import GLOBAL, PERSONAL, chosen
from fedexp.reporting.leaderboard.standings import (
    by_mean_rank,
    conclusions,
    over_controls,
    ranked_cells,
    standings,
    survivors,
    verdict,
)

COLUMNS = ["cell", "method", "setting", "seed", "trial", "score", "accuracy"]


def finals(**accuracies: tuple[float, ...]) -> pd.DataFrame:
    rows = [
        [name.partition("_")[0], name.partition("_")[2], "", seed, 0, math.nan, value]
        for name, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows, columns=COLUMNS).assign(objective="", control="")


FINALS = finals(
    a_fedavg=(0.5, 0.7, 0.6),
    a_good=(0.599, 0.801, 0.7),
    a_odd=(0.1, 0.9, 0.2),
    b_fedavg=(0.5, 0.5, 0.5),
    b_good=(0.4, 0.2, 0.3),
)


def test_means_gains_and_ranks() -> None:
    frame = standings(FINALS, "accuracy").set_index(["cell", "method"])
    assert frame.loc[("a", "good"), "mean"] == pytest.approx(0.7)
    assert frame.loc[("a", "good"), "gain"].mean == pytest.approx(0.1)
    assert frame.loc[("a", "good"), "gain"].half_width == pytest.approx(0.0024841, rel=1e-3)
    assert frame.loc[("a", "fedavg"), "gain"] is None
    # the mean of the differences -0.1, -0.3 and -0.2; t(2, 97.5 %) = 4.3027 times 0.1 / sqrt(3)
    assert frame.loc[("b", "good"), "gain"].half_width == pytest.approx(0.24841, rel=1e-3)
    assert frame.loc[("a", "odd"), "rank"] == 3
    assert frame.loc[("b", "good"), "rank"] == 2


def test_a_method_that_misses_a_cell_has_no_mean_rank() -> None:
    ranks = by_mean_rank(standings(FINALS, "accuracy"))
    assert dict(ranks) == {"fedavg": 1.5, "good": 1.5}


def test_equal_means_share_their_rank() -> None:
    """Both means are 0.4, but (0.1 + 0.2 + 0.9) / 3 is 0.4000000000000001."""
    frame = standings(finals(a_x=(0.1, 0.2, 0.9), a_y=(0.1, 0.4, 0.7)), "accuracy")
    assert frame["mean"].nunique() == 2
    assert frame["rank"].tolist() == [1.5, 1.5]


def test_verdicts_follow_from_the_interval() -> None:
    assert verdict(None) == ""
    assert verdict(Interval(0.1, 0.2, 5)) == "level"
    assert verdict(Interval(0.3, 0.2, 5)) == "ahead"
    assert verdict(Interval(-0.3, 0.2, 5)) == "behind"
    assert verdict(Interval(0.3, math.nan, 1)) == ""  # one seed is not tested
    assert verdict(Interval(0.3, 0.0, 2)) == ""  # nor are two
    assert verdict(Interval(0.3, 0.0, 3)) == ""  # nor are equal differences


def test_signs_are_corrected_for_all_comparisons_of_the_frame() -> None:
    """Three gains: differences near 0.1 have p = 0.00003, the other two p above 0.05."""
    frame = standings(FINALS, "accuracy").set_index(["cell", "method"])
    assert frame.loc[("a", "good"), "signs"] == "+++"
    assert frame.loc[("b", "good"), "signs"] == frame.loc[("a", "fedavg"), "signs"] == ""
    assert survivors(frame) == [1, 1, 1]
    level = {"a_fedavg": (0.5, 0.5, 0.5), **{f"a_{n}": (0.4, 0.7, 0.5) for n in "xyz"}}
    surer = finals(a_behind=(0.415, 0.4, 0.385), **level)
    frame = standings(surer, "accuracy").set_index("method")
    # p = 0.0074 of four: after both corrections 0.030.
    assert frame.loc["behind", "signs"] == "---"
    more = finals(a_behind=(0.43, 0.4, 0.37), **level)
    # p = 0.029 alone, 0.11 of four
    assert standings(more, "accuracy").set_index("method").loc["behind", "signs"] == "-"


def test_a_method_tuned_for_personal_accuracy_is_not_behind_in_global_accuracy() -> None:
    behind = dict.fromkeys(("a_own", "a_per", "b_per"), (0.399, 0.601, 0.5))
    tuned = finals(a_fedavg=(0.5, 0.7, 0.6), **behind)
    tuned["objective"] = "validation/accuracy"
    tuned.loc[tuned["method"] == "per", "objective"] = "validation/personal_accuracy"
    for metric in (GLOBAL, PERSONAL):
        tuned[metric] = tuned["accuracy"]
    frame = standings(tuned, GLOBAL).set_index(["cell", "method"])
    assert frame["comparable"].to_dict() == {
        ("a", "fedavg"): True,
        ("a", "own"): True,
        ("a", "per"): False,
        ("b", "per"): True,  # there is nothing to compare with
    }
    assert frame.loc[("a", "own"), "signs"] == "---"
    assert (frame.loc[("a", "per"), "gain"], frame.loc[("a", "per"), "signs"]) == (None, "")
    assert frame.loc[("a", "per"), "mean"] == pytest.approx(0.5)
    assert standings(tuned, PERSONAL)["comparable"].all()
    tuned["objective"] = "validation/personal_accuracy"  # FedAvg, too
    assert standings(tuned, GLOBAL)["comparable"].all()


def test_gains_over_controls() -> None:
    frame = finals(
        a_fedavg=(0.5, 0.7, 0.6),
        a_clipped=(0.6, 0.8, 0.7),
        a_good=(0.699, 0.901, 0.8),
        a_plain=(0.5, 0.6, 0.7),
    )
    frame.loc[frame["method"] == "good", "control"] = "clipped"
    (row,) = over_controls(frame, "accuracy").to_dict("records")
    assert (row["cell"], row["method"], row["control"]) == ("a", "good", "clipped")
    assert row["gain"].mean == pytest.approx(0.1)
    assert row["signs"] == "+++"
    assert standings(frame, "accuracy").set_index("method").loc["good", "gain"].mean == (
        pytest.approx(0.2)
    )
    without = frame[frame["method"] != "clipped"]  # its runs are missing
    assert over_controls(without, "accuracy").empty


def test_conclusions_are_counted_over_cells() -> None:
    counts = conclusions(standings(FINALS, "accuracy"))
    corrected = {"ahead, BH": 1, "behind, BH": 0, "ahead, Holm": 1, "behind, Holm": 0}
    assert dict(counts.loc["good"]) == {"ahead": 1, "level": 1, "behind": 0, **corrected}
    assert "fedavg" not in counts.index


def test_the_final_runs_of_a_budget_have_its_choice() -> None:
    trials = [("", 1, 0.5), ("lr=1", 2, 0.4), ("lr=2", 3, 0.9)]
    rows = [["a", "fedavg", setting, 100, n, score, 0.0] for setting, n, score in trials]
    rows += [
        ["a", "fedavg", setting, 0, 0, math.nan, value]
        for setting, value in (("", 0.6), ("lr=2", 0.8))
    ]
    rows += [["a", "late", "", 0, 0, math.nan, 0.9]]  # its trials have not run
    results = pd.DataFrame(rows, columns=COLUMNS)
    assert chosen(results, 2)["accuracy"].tolist() == [0.6]
    assert chosen(results, 3)["accuracy"].tolist() == [0.8]
    failed = results[results["trial"] != 2]  # a budget counts the trial that failed
    assert chosen(failed, 2)["accuracy"].tolist() == [0.6]


def test_of_equal_settings_with_final_runs_the_one_with_the_fewest_changes_is_chosen() -> None:
    settings = ["", "lr=1 mu=1", "mu=2", "mu=3"]
    rows = [["a", "m", each, 100, n, 0.5 * (n > 1), 0.0] for n, each in enumerate(settings, 1)]
    finals = [["a", "m", each, 0, 0, math.nan, 0.9] for each in settings]
    results = pd.DataFrame([*rows, *finals], columns=COLUMNS)
    assert chosen(results, 4)["setting"].tolist() == ["mu=2"]
    # a sweep of an earlier version took the first
    earlier = results[(results["trial"] > 0) | (results["setting"] == "lr=1 mu=1")]
    assert chosen(earlier, 4)["setting"].tolist() == ["lr=1 mu=1"]


def test_a_cell_with_few_methods_has_no_part_in_the_mean_ranks() -> None:
    rows = [["small", "b", 1.0], ["large", "a", 1.0], ["large", "b", 2.0], ["large", "c", 3.0]]
    frame = pd.DataFrame(rows, columns=["cell", "method", "rank"])
    assert by_mean_rank(frame).to_dict() == {"a": 1.0, "b": 2.0, "c": 3.0}
    assert ranked_cells(frame) == ["large"]
