"""What an earlier contest has found and a later sweep does not repeat: scores and choices."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from fedexp.config.keys import override_key
from fedexp.errors import InputError
from fedexp.reporting.jobs import Job
from fedexp.reporting.labels import changes_results
from fedexp.reporting.leaderboard.controls import algorithm_of
from fedexp.reporting.leaderboard.tuning import NAMED, RESULTS, Trial, Tuning, text_of, trial
from fedexp.reporting.runs import read_runs
from fedexp.state.atomic import write_atomically

Row = tuple[str, frozenset[str]]
"""A cell, and the words of a method's name in it, such as ``fedavg personalization=finetune``."""
RUNS, TRIALS = "runs.csv", "trials.csv"
"""The tables in the folder of a factorial experiment's report."""
NEW = "new_trials.txt"
"""The file of a sweep with the overrides of the trials that no earlier sweep had run."""


def earlier_scores(tuning: Tuning) -> dict[Trial, float]:
    """The scores of all finished trials in ``tuning.earlier``. Raises InputError."""
    if not tuning.earlier:
        return {}
    contests = {path: _contest_table(path) for path in map(Path, tuning.earlier)}
    reports, sweeps = reports_and_sweeps(path for path, table in contests.items() if not table)
    if absent := [path for path in sweeps if not path.exists()]:
        raise InputError(f"hydra.sweeper.tune.earlier: {absent[0]}: does not exist")
    found: dict[Trial, float] = {}
    for table in [*filter(None, contests.values()), *(folder / TRIALS for folder in reports)]:
        found |= _scores_in(table, tuning.statistic)
    runs, problems = read_runs(sweeps) if sweeps else ([], [])
    for run in runs:
        if run.finished and run.seed in tuning.seeds:
            found[trial(run.overrides)] = run.statistic(run.config["objective"], tuning.statistic)
    if not found:
        reasons = "; ".join(problems) or "no finished trial is there"
        raise InputError(f"hydra.sweeper.tune.earlier: {reasons}")
    return found


def new_trials(trials: Sequence[Job], known: Container[Trial], sweep: Path) -> list[Job]:
    """The trials that no earlier sweep had run when the sweep in this folder first started.

    Jobs are numbered by them. A file keeps them for a sweep that goes on, since the earlier sweeps
    may have got more trials by then. Raises InputError for a trial that is neither in this file nor
    known.
    """
    path, new = sweep / NEW, [each for each in trials if trial(each) not in known]
    if not path.is_file():
        write_atomically(path, "".join(f"{text_of(each)}\n" for each in new).encode())
        return new
    listed = set(path.read_text().splitlines())
    if lost := [text_of(each) for each in new if text_of(each) not in listed]:
        raise InputError(
            f"hydra.sweeper.tune: {sweep} was begun without the trial {lost[0]}; begin another "
            f"sweep with hydra.sweeper.tune.earlier=[{sweep}]"
        )
    return [each for each in trials if text_of(each) in listed]


def reports_and_sweeps(folders: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """The folders with the tables of a report, and the others, which are sweeps or hold them."""
    found: tuple[list[Path], list[Path]] = ([], [])
    for folder in folders:
        is_report = (folder / RUNS).is_file() or (folder / TRIALS).is_file()
        found[not is_report or (folder / "multirun.yaml").is_file()].append(folder)
    return found


def _contest_table(path: Path) -> Path | None:
    """The table of a contest with this path or in this folder; None for a sweep or a report."""
    if path.is_file():
        return path
    table = path / RESULTS
    return table if table.is_file() and not (path / "multirun.yaml").is_file() else None


def _scores_in(path: Path, statistic: str) -> dict[Trial, float]:
    """The scores of the trials in a table. Raises InputError."""
    import pandas as pd  # slow to import

    try:
        table = pd.read_csv(path)
        table = table[table["overrides"].notna()]  # final runs have none
        told = table.get("score_statistic", pd.Series())  # absent in tables of earlier versions
        if not (others := {*told.dropna()} - {statistic}):
            return {
                frozenset(shlex.split(text)): float(score)
                for text, score in zip(table["overrides"], table["score"], strict=True)
            }
        reason = f"{path}: its scores are {min(others)}, not {statistic}"
    except FileNotFoundError:
        reason = f"{path}: does not exist; its experiment had no trials"
    except KeyError as error:
        reason = f"{path}: has no column {error.args[0]}; an earlier version wrote it"
    except (OSError, ValueError, AttributeError, TypeError) as error:  # also of a parser
        reason = f"{path}: is no table of trials: {error}"
    raise InputError(f"hydra.sweeper.tune.earlier: {reason}")


def with_chosen(jobs: Sequence[Job], tuning: Tuning) -> tuple[list[Job], list[str]]:
    """Give each job the setting that the largest budget of the contest ``tuning.chosen`` chose.

    Overrides that all jobs share, such as ``rounds=30``, need not be those of the contest.

    Returns:
        The jobs, and the name of each method that has no row there and is left out.

    Raises:
        InputError: ``tuning.chosen`` cannot be read, has none of the methods, or a job fixes a key
            that is tuned.
    """
    tuning.check_free(jobs)
    settings = _chosen_settings(Path(tuning.chosen))
    names = [_name_in(settings, *each) for each in zip(jobs, _cells_and_methods(jobs), strict=True)]
    named = list(zip(jobs, names, strict=True))
    found = [[*job, *settings[name]] for job, name in named if name in settings]
    absent = dict.fromkeys(_text(name) for name in names if name not in settings)
    if not found:
        raise InputError(
            f"hydra.sweeper.tune.chosen={tuning.chosen}: has no row of {', '.join(absent)} in the "
            "cells of this sweep"
        )
    return found, list(absent)


def _name_in(settings: Iterable[Row], job: Job, row: Row) -> Row:
    """The job's row in the contest, whose name may have overrides that all jobs share.

    Of several rows that fit the job, the row with the overrides of all others counts. If there is
    none, neither is the result a row of the contest.

    Args:
        settings: the rows of the contest.
        job: the overrides of the job.
        row: the job's cell and the words of its method without the shared overrides.
    """
    cell, words = row
    every = words.union(job)
    fitting = (each for where, each in settings if where == cell and words <= each <= every)
    return cell, words.union(*fitting)


def _text(row: Row) -> str:
    """The method's name, the algorithm first."""
    return " ".join(sorted(row[1], key=lambda word: ("=" in word, word)))


def _chosen_settings(contest: Path) -> dict[Row, list[str]]:
    from fedexp.reporting.leaderboard.files import read_contest  # slow to import
    from fedexp.reporting.leaderboard.results import best

    try:
        results, _ = read_contest([contest])
    except InputError as error:
        raise InputError(f"hydra.sweeper.tune.chosen: {error}") from error
    return {
        (cell, frozenset(method.split())): setting.split()
        for cell, method, setting in best(results)[["cell", "method", "setting"]].to_numpy()
    }


def _cells_and_methods(jobs: Sequence[Job]) -> list[Row]:
    """The cell and the method of each job.

    If there are several methods, their names lack the overrides that all jobs share.
    """
    typed = [{override_key(each): each for each in job} for job in jobs]
    options = [
        frozenset(word for key, word in own.items() if key not in NAMED and changes_results(key))
        for own in typed
    ]
    methods = [frozenset([algorithm_of(job)]) for job in jobs]
    if len({*zip(methods, options, strict=True)}) > 1:
        shared = frozenset.intersection(*options)
        options = [each - shared for each in options]
    cells = [own.get("experiment", "").rpartition("=")[2].rpartition("/")[2] for own in typed]
    return [(cell, one | rest) for cell, one, rest in zip(cells, methods, options, strict=True)]
