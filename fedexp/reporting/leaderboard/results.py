"""The results of a contest: one row for each run, from the files of its sweeps."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import pandas as pd

from fedexp.config.keys import override_key
from fedexp.errors import InputError
from fedexp.reporting.labels import PARTS, changes_results
from fedexp.reporting.leaderboard.controls import control_of
from fedexp.reporting.leaderboard.tuning import (
    NAMED,
    Setting,
    Tuning,
    changed_keys,
    choice,
    mean_score,
    text_of,
)
from fedexp.reporting.runs import UNREADABLE, Run, read_runs, read_yaml
from fedexp.reporting.statistics import BYTES, SECONDS, mean_of_last, total
from fedexp.reporting.unfinished import how_to_finish

GLOBAL, PERSONAL = "global accuracy", "personal accuracy"
MEASURED = {
    PERSONAL: "personal/accuracy_local",
    "worst tenth": "fairness/worst_decile",
    "gini": "fairness/gini",
}
"""Column of the results -> metric; the column has its value in the last round of each run."""
KEYS = ["cell", "method", "setting"]
_Key = tuple[str, str, str]
"""A cell, a method and a setting."""


def read_results(
    sweeps: Sequence[Path], is_named: Callable[[str], bool] = lambda override: False
) -> tuple[pd.DataFrame, list[str]]:
    """Read the runs of the sweeps of one contest.

    The methods' names lack the overrides that all runs share. If the results are joined or compared
    with others, whose methods may lack such an override, ``is_named`` tells whether it is named all
    the same.

    Returns:
        A frame with a row for each run, and one line for each run that is left out. The columns are
        ``cell`` (the experiment), ``method``, ``setting`` (the tuned overrides; empty for the
        preset without changes), ``seed``, ``trial`` (the trial's number from 1; 0 for a final run),
        ``score`` (of a trial; ``score_statistic`` names its statistic, and ``overrides`` has the
        trial's overrides), ``objective`` (the metric that chooses among the trials; empty
        without trials), ``control`` (the method that is this method's control; empty if it has
        none of its own), the accuracies, ``worst tenth``, ``gini``,
        ``megabytes`` and ``seconds`` (without evaluation) of the whole run, and ``budgets`` (the
        search budgets of the contest, such as "1 4 16"). A method that is tuned for two objectives
        in a cell has two names. Of runs with equal cell, method, setting and seed, only the first
        has a row.

    Raises:
        InputError: a folder holds no sweep of a contest, or nothing has run.
    """
    found = [(tuning_of(sweep), *read_runs([sweep])) for sweep in sweeps]
    shared = shared_overrides(run for _, runs, _ in found for run in runs)
    shared = {each for each in shared if not is_named(each)}
    rows, problems = [], []
    for tuning, runs, left_out in found:
        problems += left_out
        problems += [how_to_finish(run) for run in runs if not run.finished]
        for run in (each for each in runs if each.finished):
            try:
                rows.append(_row(run, tuning, shared))
            except (LookupError, ValueError, TypeError) as error:
                problems.append(f"{run.place}: is no run of this contest ({error})")
    if not rows:
        raise InputError("\n".join(problems) or "no folder given")
    return in_order(_named(pd.DataFrame(rows))), problems


def is_part(override: str) -> bool:
    """Whether an override chooses a part of a method, such as ``sampler=hics``."""
    return override_key(override) in PARTS


def shared_overrides(runs: Iterable[Run]) -> set[str]:
    """The overrides that all runs have."""
    every = [set(run.overrides) for run in runs]
    return set.intersection(*every) if every else set()


def in_order(results: pd.DataFrame) -> pd.DataFrame:
    """The results in the order of the table; of runs that agree in ``KEYS`` and seed, the first."""
    first = results.drop_duplicates([*KEYS, "seed"])
    return first.sort_values(["cell", "method", "trial", "setting", "seed"])


def budgets_of(results: pd.DataFrame) -> list[int]:
    """The search budgets of the contest, ascending; [1] if it has no trials."""
    budgets = {int(each) for row in results["budgets"].unique() for each in str(row).split()}
    return sorted(budgets) or [1]


def best(results: pd.DataFrame) -> pd.DataFrame:
    """The final runs with the setting that the contest's largest budget chooses."""
    return chosen(results, budgets_of(results)[-1])


def chosen(results: pd.DataFrame, budget: int) -> pd.DataFrame:
    """The final runs with the setting that a search with this budget chooses.

    A method whose trials or final runs are missing in a cell is absent in that cell. If the contest
    has no trials, all runs are final.
    """
    trials = results[results["trial"] > 0]
    if trials.empty:
        return results
    finals = results[results["trial"] == 0]
    ran = set(_keys(finals))
    scores = _over_seeds(trials[trials["trial"] <= budget])  # failed trials are absent
    best = [_best(tried, ran, budget) for tried in scores.values()]
    return finals.merge(pd.DataFrame(best, columns=KEYS), on=KEYS)


def _best(scores: dict[_Key, float], ran: Set[_Key], budget: int) -> _Key:
    """The setting of a method in a cell that a search with this budget chooses.

    Of equally good settings, one with final runs comes first: earlier versions chose by another
    order. Then, as in the sweep, the setting with the fewest changed keys is chosen.
    """
    keys = list(scores)
    changes = [(key not in ran, changed_keys(key[-1])) for key in keys]
    return keys[choice(list(scores.values()), changes, budget)]


def _over_seeds(trials: pd.DataFrame) -> dict[tuple[str, str], dict[_Key, float]]:
    """(cell, method) -> setting, in the order of the trials -> score; NaN if a seed is missing."""
    seeds = trials["seed"].nunique()
    in_order = trials.sort_values("trial", kind="stable")
    scores: dict[_Key, list[float]] = {}
    for key, score in zip(_keys(in_order), in_order["score"], strict=True):
        scores.setdefault(key, []).append(score)
    found: dict[tuple[str, str], dict[_Key, float]] = {}
    for key, own in scores.items():
        score = mean_score(own) if len(own) == seeds else math.nan
        found.setdefault(key[:2], {})[key] = score
    return found


def _keys(runs: pd.DataFrame) -> Iterator[_Key]:
    """Cell, method and setting of each run."""
    return zip(*(runs[key] for key in KEYS), strict=True)


def tuning_of(sweep: Path) -> Tuning:
    """How the methods of a contest were tuned. Raises InputError if ``sweep`` is no contest."""
    if not sweep.exists():
        raise InputError(f"{sweep}: does not exist")
    try:
        return Tuning.read(read_yaml(sweep / "multirun.yaml")["hydra"]["sweeper"]["tune"])
    except InputError:
        raise
    except UNREADABLE as error:
        raise InputError(
            f"{sweep}: is not the sweep of a contest: its multirun.yaml is missing or has no "
            "usable hydra.sweeper.tune"
        ) from error


def _row(run: Run, tuning: Tuning, shared: Set[str]) -> dict[str, Any]:
    """The row of a run; ``shared`` are overrides that no method's name has."""
    algorithm = str(run.choices["algorithm"])
    tuned = tuning.keys(algorithm)
    setting = tuple(each for each in run.overrides if override_key(each) in tuned)
    job, groups, values = _job(run, setting), *_other_options(run, {*shared, *setting})
    control = control_of(job, tuning.controls)
    is_trial, last = run.seed in tuning.seeds, run.history[-1]
    return {
        "cell": str(run.choices["experiment"]).rpartition("/")[2],
        "method": " ".join([algorithm, *groups]),
        "job": frozenset(job),
        "control": frozenset(control or ()),
        "values": " ".join(values),
        "aim": next((each for each in run.overrides if override_key(each) == "objective"), ""),
        "setting": " ".join(setting),
        "seed": run.seed,
        "trial": tuning.settings(algorithm).index(setting) + 1 if is_trial else 0,
        "score": run.statistic(run.config["objective"], tuning.statistic) if is_trial else math.nan,
        "score_statistic": tuning.statistic if is_trial else "",
        "overrides": text_of(run.overrides) if is_trial else "",
        "objective": run.config["objective"] if tuning.budgets or tuning.chosen else "",
        GLOBAL: mean_of_last(run.history, "global/accuracy"),
        **{name: last.get(metric, math.nan) for name, metric in MEASURED.items()},
        "megabytes": total(run.history, BYTES) / 1e6,
        "seconds": total(run.history, SECONDS),
        "budgets": " ".join(map(str, tuning.budgets)),
    }


def _job(run: Run, setting: Setting) -> list[str]:
    """The overrides that the method's runs in its cell have in common, with all settings."""
    typed = {each: override_key(each) for each in run.overrides if each not in setting}
    return [each for each, key in typed.items() if key == "objective" or changes_results(key)]


def _other_options(run: Run, common: Set[str]) -> tuple[list[str], list[str]]:
    """The method's options besides ``algorithm``: groups (``sampler=hics``) and other values."""
    typed = {override_key(each): each for each in run.overrides if each not in common}
    others = [key for key in typed if key not in NAMED and changes_results(key)]
    groups = [typed[key] for key in run.choices if key in others]
    return groups, [typed[key] for key in others if key not in run.choices]


def _named(frame: pd.DataFrame) -> pd.DataFrame:
    """Name methods that differ apart; replace the controls' jobs by their methods' names."""
    controls = set(frame["control"])
    is_control = pd.Series([job in controls for job in frame["job"]], index=frame.index)
    longer = (frame["method"] + " " + frame["values"]).str.strip()
    frame["method"] = frame["method"].where(~is_control, longer)  # also without plain FedAvg
    frame["values"] = frame["values"].where(~is_control, "")
    frame = _named_apart(frame, "values", ["method"])
    frame = _named_apart(frame, "aim", ["cell", "method"])
    names = dict(zip(frame.pop("job"), frame["method"], strict=True))
    return frame.assign(control=[names.get(each, "") for each in frame["control"]])


def _named_apart(frame: pd.DataFrame, column: str, names: list[str]) -> pd.DataFrame:
    """Add the texts of ``column`` to methods that otherwise have equal ``names``; drop it."""
    several = frame.groupby(names)[column].transform("nunique") > 1
    longer = (frame["method"] + " " + frame[column]).str.strip()
    method = frame["method"].where(~several, longer)
    return frame.assign(method=method).drop(columns=column)
