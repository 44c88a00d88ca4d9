"""Trials of earlier sweeps of a contest, which a later sweep does not repeat."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fedexp.config.keys import override_key
from fedexp.errors import InputError
from fedexp.reporting.labels import changes_results
from fedexp.reporting.leaderboard.tuning import Tuning

Trial = frozenset[str]
"""The overrides of a trial that can change its results."""


def trial(overrides: Iterable[str]) -> Trial:
    """The trial with these overrides, in any order and with any engine."""
    keys = {each: override_key(each) for each in overrides}
    return frozenset(each for each, key in keys.items() if key == "seed" or changes_results(key))


def earlier_scores(tuning: Tuning) -> dict[Trial, float]:
    """The scores of all finished trials in the folders ``tuning.earlier``. Raises InputError."""
    if not tuning.earlier:
        return {}
    from fedexp.reporting.leaderboard.results import score_of  # slow to import
    from fedexp.reporting.runs import read_runs

    runs, problems = read_runs(map(Path, tuning.earlier))
    found = {
        trial(run.overrides): score_of(run, tuning.statistic)
        for run in runs
        if run.finished and run.seed in tuning.seeds
    }
    if not found:
        reasons = "; ".join(problems) or "no finished trial is there"
        raise InputError(f"hydra.sweeper.tune.earlier: {reasons}")
    return found
