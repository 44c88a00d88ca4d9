"""The page of the factorial experiment on CIFAR-10 says how many of its trials have ended."""

import pandas as pd
from generate.results import RESULTS
from support.result_pages import prose

from fedexp.reporting.leaderboard.earlier import earlier_scores
from fedexp.reporting.leaderboard.tuning import Tuning

FOLDER = RESULTS / "factorial_cifar10"


def test_the_trials_that_have_ended_can_be_taken_as_done() -> None:
    trials = pd.read_csv(FOLDER / "trials.csv")
    assert set(trials["cell"]) == {"cifar10_dir03"}
    assert set(trials["seed"]) <= {900, 901}
    text = prose((RESULTS / "factorial.md").read_text())
    assert f"have begun; {len(trials)} of 128 have ended" in text
    tuning = Tuning.read(
        {"seed": "900,901", "budgets": [4], "common": {}, "own": {}, "earlier": [FOLDER]}
    )
    assert len(earlier_scores(tuning)) == len(trials)
