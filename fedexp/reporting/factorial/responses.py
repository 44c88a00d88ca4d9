"""The runs of a factorial experiment as a table: cell, combination, seed and value."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedexp.config.keys import override_key
from fedexp.errors import InputError, readable
from fedexp.reporting.factorial.design import HIGH, Design
from fedexp.reporting.families import Floats
from fedexp.reporting.labels import changes_results
from fedexp.reporting.leaderboard.earlier import RUNS, TRIALS, reports_and_sweeps
from fedexp.reporting.leaderboard.results import tuning_of
from fedexp.reporting.leaderboard.tuning import Tuning, changed_keys, choice, mean_score, text_of
from fedexp.reporting.marks import direction
from fedexp.reporting.runs import Run, read_runs
from fedexp.reporting.unfinished import how_to_finish

_OF_TRIALS = ("trial", "score", "score_statistic")
"""The columns that only trials have."""
_CHOICE = ("cell", "combination", "setting")
"""The columns that say which setting a combination chose in a cell."""


@dataclass(frozen=True)
class Responses:
    """The runs of a factorial experiment.

    Attributes:
        design: the design.
        tuning: how each combination was tuned.
        finals: a row for each final run: ``cell``, ``combination`` (its number in the design), the
            factors' levels (``low`` or ``high``), ``setting`` (the tuned overrides), ``seed``,
            ``overrides``, as ``fedexp.reporting.leaderboard.tuning.text_of`` writes them,
            ``value``, and its ``metric`` and ``statistic``.
        trials: the same for the trials, with ``score``, by which a setting is chosen, and
            ``score_statistic``, its statistic.
        better: whether ``higher`` or ``lower`` values are better.
    """

    design: Design
    tuning: Tuning
    finals: pd.DataFrame
    trials: pd.DataFrame
    better: str

    @property
    def cells(self) -> list[str]:
        """The names of the cells."""
        return list(dict.fromkeys([*self.finals["cell"], *self.trials["cell"]]))

    def values(self, cell: str) -> tuple[Floats, list[int], list[str]]:
        """The final runs of a cell.

        Settings that the trials do not choose, but smaller budgets or fewer trials did, are left
        out. A combination without trials should have run with one setting; else it is left out.

        Returns:
            [n, m] values of the seeds that have run in all m combinations; these seeds; and a line
            for each seed that is left out.
        """
        own = self.finals[self.finals["cell"] == cell]
        merged = own.merge(self.chosen[[*_CHOICE]], how="left", indicator=True)
        is_chosen = (merged["_merge"] == "both").to_numpy()
        tried = self.chosen.dropna(subset=["score"]).query("cell == @cell")["combination"]
        has_one = own.groupby("combination")["setting"].transform("nunique") == 1
        untried = has_one & ~own["combination"].isin(tried)
        return _complete(own[is_chosen | untried], self.design, cell)

    def pilot(self, cell: str) -> Floats:
        """[n, m] values of the trial seeds with the chosen settings; n is 0 without trials."""
        own = self.trials.merge(self.chosen[[*_CHOICE]])
        return _complete(own[own["cell"] == cell], self.design, cell)[0]

    @cached_property
    def chosen(self) -> pd.DataFrame:
        """The setting that the trials choose: ``cell``, ``combination``, levels, ``setting``, and
        ``score``, its mean over the trials' seeds.
        """
        names = ["cell", "combination", *self.design.factors]
        rows = []
        for key, own in self.trials.groupby(names, sort=False):
            settings = list(dict.fromkeys(own.sort_values("trial")["setting"]))
            scores = [own.loc[own["setting"] == each, "score"].tolist() for each in settings]
            means = [
                mean_score(each) if len(each) == len(self.tuning.seeds) else math.nan
                for each in scores
            ]
            best = choice(means, list(map(changed_keys, settings)), len(means))
            rows.append([*key, settings[best], means[best]])
        return pd.DataFrame(rows, columns=[*names, "setting", "score"])


def read_responses(
    paths: Sequence[Path], metric: str, statistic: str
) -> tuple[Responses, list[str]]:
    """Read the runs of a factorial experiment; its sweeps may be in several folders.

    A folder with the tables of an earlier report stands for the sweeps that it reported. A run that
    is in a sweep and in a table is taken from the sweep.

    Returns:
        The runs, and a line for each run that is left out.

    Raises:
        InputError: no sweep is a factorial experiment, sweeps have different designs or were tuned
            in different ways, a table has another metric or statistic, or no run has the metric.
    """
    reports, sweeps = reports_and_sweeps(paths)
    runs, problems = read_runs(sweeps) if sweeps else ([], [])
    found = _designs(runs)
    if not found:
        lacks = "no factorial experiment is there"
        if reports:
            lacks = f"{reports[0]} has a report's tables without their design; name a sweep, too"
        raise InputError("\n".join([*problems, f"--factorial: {lacks}"]))
    folder, design = next(iter(found.items()))
    tuning = tuning_of(folder)
    for other in found:
        if replace(tuning_of(other), earlier=tuning.earlier) != tuning:
            raise InputError(f"--factorial: {folder} and {other} were tuned in different ways")
    of_design = [run for run in runs if run.folder.parent in found]
    problems += [how_to_finish(run) for run in of_design if not run.finished]
    finished = [run for run in of_design if run.finished]
    rows = list(_rows(finished, design, tuning, metric, statistic))
    told = {"metric": metric, "statistic": statistic, "score_statistic": tuning.statistic}
    tables = [_of_report(path, design, tuning, told) for path in reports]
    frame = pd.concat([pd.DataFrame(rows), *tables])
    if not frame.empty:
        frame["cell"] = _names(frame["cell"].tolist(), frame.pop("words").tolist())
    if frame.empty or frame["value"].isna().all():
        raise InputError(f"--factorial: no finished run has {metric} with statistic={statistic}")
    frame = frame.sort_values(["combination", "seed"], kind="stable")
    repeated = frame.duplicated(["cell", "combination", "setting", "seed"])
    frame = frame[~repeated]
    is_trial = frame["trial"] > 0
    finals = frame[~is_trial].drop(columns=[*_OF_TRIALS])
    better = _better(of_design[0], metric)
    return Responses(design, tuning, finals, frame[is_trial], better), problems


def _designs(runs: Iterable[Run]) -> dict[Path, Design]:
    """The sweeps of factorial experiments -> their design. Raises InputError if it is not one."""
    found: dict[Path, Design] = {}
    for folder in dict.fromkeys(run.folder.parent for run in runs):
        if (design := Design.of_sweep(folder)) is None:
            continue
        found[folder] = design
        first = next(iter(found))
        if design != found[first]:
            raise InputError(f"--factorial: {first} and {folder} have different factors")
    return found


def _rows(
    runs: Sequence[Run], design: Design, tuning: Tuning, metric: str, statistic: str
) -> Iterable[dict[str, Any]]:
    for run in runs:
        if (signs := design.signs_of(run.overrides)) is None:
            continue
        algorithm = _algorithm(run)
        setting = tuple(e for e in run.overrides if override_key(e) in tuning.keys(algorithm))
        is_trial = run.seed in tuning.seeds
        yield {
            "cell": str(run.choices.get("experiment") or "all").rpartition("/")[2],
            "words": _words(run.overrides, design, tuning),
            "combination": design.combinations.index(signs) + 1,
            **{name: "high" if sign == HIGH else "low" for name, sign in signs.items()},
            "setting": " ".join(setting),
            "seed": run.seed,
            "trial": tuning.settings(algorithm).index(setting) + 1 if is_trial else 0,
            "score": run.statistic(run.config.get("objective", ""), tuning.statistic),
            "score_statistic": tuning.statistic,
            "overrides": text_of(run.overrides),
            "value": run.statistic(metric, statistic, _better(run, metric)),
            "metric": metric,
            "statistic": statistic,
        }


def _of_report(
    folder: Path, design: Design, tuning: Tuning, told: Mapping[str, str]
) -> pd.DataFrame:
    """The finals and trials in the tables of an earlier report.

    ``told`` is column -> its value in this report. Raises InputError, also for another value.
    """
    found = []
    for path in filter(Path.is_file, (folder / RUNS, folder / TRIALS)):
        texts = dict.fromkeys(("setting", "overrides", *told), str)
        with readable(path, ValueError):  # also of a parser
            table = pd.read_csv(path, dtype=texts).fillna(dict.fromkeys(texts, ""))
        if path.name == RUNS:
            score_statistic = told["score_statistic"]
            table = table.assign(trial=0, score=math.nan, score_statistic=score_statistic)
        wanted = ("cell", "setting", "seed", "overrides", "value", *told, *design.factors)
        if lacking := [name for name in (*wanted, *_OF_TRIALS) if name not in table]:
            raise InputError(f"--factorial: {path}: has no column {lacking[0]}")
        for name, value in told.items():
            if other := {*table[name]} - {value}:
                raise InputError(f"--factorial: {path}: its {name} is {min(other)}, not {value}")
        found.append(table)
    numbers = {
        tuple("high" if signs[name] == HIGH else "low" for name in design.factors): number
        for number, signs in enumerate(design.combinations, 1)
    }
    frame = pd.concat(found)
    words = frame["overrides"].map(lambda each: _words(shlex.split(each), design, tuning))
    levels = list(frame[list(design.factors)].itertuples(index=False, name=None))
    if unknown := {*levels} - {*numbers}:
        raise InputError(f"--factorial: {folder}: {min(unknown)} is no combination of this design")
    return frame.assign(words=words, combination=[numbers[each] for each in levels])


def _algorithm(run: Run) -> str:
    return str(run.choices.get("algorithm"))


def _words(overrides: Iterable[str], design: Design, tuning: Tuning) -> frozenset[str]:
    """The overrides of a run that tell its cell from others: neither levels nor settings."""
    tuned = {key for name in ("", *tuning.own) for key in tuning.keys(name)}
    typed = {each: override_key(each) for each in overrides}
    varied = {*design.keys, *tuned}
    return frozenset(e for e, key in typed.items() if key not in varied and changes_results(key))


def _names(cells: Sequence[str], words: Sequence[frozenset[str]]) -> list[str]:
    """Name each row's cell by the words that not all rows have.

    A cell keeps its name if it has no other words. The experiment's name stands alone, and first.
    """
    shared = frozenset.intersection(*words)
    return [" ".join(_sorted(own - shared)) or cell for cell, own in zip(cells, words, strict=True)]


def _sorted(words: Iterable[str]) -> list[str]:
    typed = sorted((override_key(each) != "experiment", each) for each in words)
    return [each if is_other else each.rpartition("/")[2] for is_other, each in typed]


def _better(run: Run, metric: str) -> str:
    """``higher``, or ``lower`` if the run says so of the metric."""
    return direction(metric, {**run.directions, **run.headlines}) or "higher"


def _complete(
    frame: pd.DataFrame, design: Design, cell: str
) -> tuple[Floats, list[int], list[str]]:
    """The seeds with a finite value in every combination; see ``Responses.values``."""
    kept, problems, seeds = [], [], []
    numbers = range(1, len(design.combinations) + 1)
    for seed in sorted(set(frame["seed"].tolist())):
        own = frame[frame["seed"] == seed]
        of = dict(zip(own["combination"], own["value"], strict=True))
        row = [of.get(number, math.nan) for number in numbers]
        if lacking := [str(n) for n in numbers if not math.isfinite(row[n - 1])]:
            problems.append(
                f"{cell}: seed {seed} is left out: of {len(row)} combinations, "
                f"{', '.join(lacking)} have no value"
            )
            continue
        kept.append(row)
        seeds.append(seed)
    return np.array(kept).reshape(len(kept), len(numbers)), seeds, problems
