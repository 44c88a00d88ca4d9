"""The page of the factorial experiment on CIFAR-10: trials that have ended, and their choices."""

import pandas as pd
from generate.results import RESULTS
from support.result_pages import prose

from fedexp.reporting.leaderboard.earlier import earlier_scores
from fedexp.reporting.leaderboard.tuning import Tuning

FOLDER, PAGE = RESULTS / "factorial_cifar10", RESULTS / "factorial.md"


def test_the_trials_that_have_ended_can_be_taken_as_done() -> None:
    trials = pd.read_csv(FOLDER / "trials.csv")
    assert set(trials["cell"]) == {"cifar10_dir03"}
    assert set(trials["seed"]) <= {900, 901}
    assert f"{len(trials)} trials and 80 final runs" in prose(PAGE.read_text())
    tuning = Tuning.read(
        {
            "seed": "900,901",
            "budgets": [5],
            "statistic": "mean_last5",
            "common": {},
            "own": {},
            "earlier": [FOLDER],
        }
    )
    assert len(earlier_scores(tuning)) == len(trials)


def test_the_rates_that_combinations_had_chosen_before_the_lowest_joined() -> None:
    trials = pd.read_csv(FOLDER / "trials.csv").fillna({"setting": "optimizer.lr=0.03"})
    trials["rate"] = trials["setting"].str.removeprefix("optimizer.lr=").astype(float)
    earlier = trials[trials["rate"] > 0.001]
    means = earlier.groupby(["combination", "rate"])["score"].mean().unstack()
    counts = means.idxmax(axis=1).value_counts()
    assert counts.to_dict() == {0.03: 4, 0.01: 7, 0.003: 5}
    line = "of the 16 combinations four had chosen 0.03, seven 0.01 and five 0.003"
    assert line in prose(PAGE.read_text())


def test_the_choices_the_pilot_and_the_final_runs() -> None:
    trials, runs = (pd.read_csv(FOLDER / f"{name}.csv") for name in ("trials", "runs"))
    for frame in (trials, runs):
        frame["setting"] = frame["setting"].fillna("optimizer.lr=0.03")
    means = trials.groupby(["combination", "setting"])["score"].mean().unstack()
    chosen = means.idxmax(axis=1)
    counts = chosen.str.removeprefix("optimizer.lr=").astype(float).value_counts()
    assert counts.to_dict() == {0.03: 4, 0.01: 7, 0.003: 3, 0.001: 2}
    text = prose(PAGE.read_text())
    assert "now four choose 0.03, seven 0.01, three 0.003 and two 0.001" in text
    assert (runs["setting"] == runs["combination"].map(chosen)).all()
    own = trials[trials["setting"] == trials["combination"].map(chosen)]
    pairs = own.pivot(index="combination", columns="seed", values="value")
    deviation = (pairs[900] - pairs[901]).std() / 2**0.5  # of the residual, 15 degrees of freedom
    assert f"a residual deviation of {deviation:.4f} (15 degrees of freedom)" in text
    counts = runs.groupby(["combination", "seed"]).size().unstack()
    assert counts.to_numpy().tolist() == [[1] * 5] * 16
