"""Writes the results, the page and the pictures of a contest, and reads the results."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from fedexp.errors import InputError
from fedexp.reporting.csv import csv
from fedexp.reporting.drawing import png
from fedexp.reporting.files import write_contents
from fedexp.reporting.leaderboard.figures import gains_map, ranks_by_budget
from fedexp.reporting.leaderboard.page import METRICS, cells_of, page
from fedexp.reporting.leaderboard.results import (
    KEYS,
    budgets_of,
    chosen,
    in_order,
    is_part,
    read_results,
    tuning_of,
)
from fedexp.reporting.leaderboard.standings import standings
from fedexp.reporting.leaderboard.tuning import RESULTS
from fedexp.reporting.markdown import markdown
from fedexp.reporting.table import Table

PAGE = "leaderboard.md"


def write(results: pd.DataFrame, folder: Path, first: Sequence[Table] = ()) -> list[Path]:
    """Write ``leaderboard.csv``, ``leaderboard.md`` and the pictures; return their paths.

    ``first`` are tables to show above the results, such as the entries from outside. Raises
    InputError if the folder cannot be written.
    """
    drawn = pictures(results)
    names = [f"![{title}]({name}.png)" for name, title, _ in drawn]
    text = "\n\n".join(["# Leaderboard", *map(markdown, first), page(results), *names])
    contents = {RESULTS: csv(results), PAGE: f"{text}\n".encode()}
    contents |= {f"{name}.png": png(figure) for name, _, figure in drawn}
    write_contents(contents, folder)
    return [folder / name for name in contents]


def pictures(results: pd.DataFrame) -> list[tuple[str, str, Figure]]:
    """(Name, title, figure) of each picture; without a gain there is no picture of gains."""
    cells, found = cells_of(results), []
    for metric in METRICS:
        frames = {b: standings(chosen(results, b), metric) for b in budgets_of(results)}
        name = metric.replace(" ", "_")
        best = frames[max(frames)]
        if best["gain"].notna().any():
            gains = gains_map(best, cells, metric)
            found.append((f"gains_{name}", f"Gains over FedAvg, {metric}", gains))
        if len(frames) > 1 and not best.empty:
            ranks = ranks_by_budget(frames)
            found.append((f"ranks_{name}", f"Mean rank by the number of trials, {metric}", ranks))
    return found


def read_contest(
    sources: Sequence[Path], before: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Read the results of one contest from folders of sweeps and from ``leaderboard.csv`` files.

    Beside files, the names of methods have all options of their parts, such as ``sampler=hics``,
    unless all trials in the files share them: the methods in the files may lack them. An option
    that all runs share is also named if it is in a name of ``before``, results with which these are
    to be compared.

    Of runs with equal cell, method, setting and seed, the first counts, the folders before the
    files. Returns and raises as ``read_results``; also returns a line for each method with a
    setting that its trials do not choose. Also raises InputError if methods were tuned with other
    seeds, since the trials with the seeds that they lack would count as failed, or by another
    statistic, or if a method has run with several settings and there are no trials at all.
    """
    folders = [each for each in sources if not each.is_file()]
    frames = [read_csv(each) for each in sources if each.is_file()]
    seeds = [_trial_seeds(each) for each in frames]
    problems: list[str] = []
    if folders:
        found, problems = read_results(folders, _naming(frames, before))
        frames.insert(0, found)
        seeds += [frozenset(tuning_of(each).seeds) for each in folders]
    joined = in_order(pd.concat(frames))
    if len({each for each in seeds if each}) > 1:
        _check_trials(joined)
    _check_statistics(joined)
    _check_choices(joined)
    return joined, [*problems, *_not_chosen(joined)]


def _naming(tables: Sequence[pd.DataFrame], before: pd.DataFrame | None) -> Callable[[str], bool]:
    """Whether an override that all runs of the sweeps share is in the names of their methods."""
    if not tables:
        return _words([] if before is None else [before]).__contains__
    texts = (text for table in tables for text in table["overrides"] if text)
    every = [{*shlex.split(text)} for text in texts]
    unnamed = set.intersection(*every) - _words(tables) if every else set()
    return lambda each: is_part(each) and each not in unnamed


def _words(tables: Iterable[pd.DataFrame]) -> set[str]:
    """The words in the names of the tables' methods."""
    return {word for table in tables for name in table["method"] for word in name.split()}


def _check_statistics(results: pd.DataFrame) -> None:
    """Raise InputError if trials were scored by different statistics; old tables name none."""
    told = results.loc[results["trial"] > 0, "score_statistic"]
    if len(kinds := sorted({*told} - {""})) > 1:
        raise InputError(
            f"trials are scored by {' and by '.join(kinds)}; only results of one contest can be "
            "joined"
        )


def _check_choices(results: pd.DataFrame) -> None:
    """Raise InputError if a method has several settings, and there are no trials at all."""
    if (results["trial"] > 0).any():
        return
    for (cell, method), own in results.groupby(["cell", "method"]):
        if own["setting"].nunique() > 1:
            raise InputError(
                f"{method} in {cell}: has run with several settings, and the trials that choose "
                "among them are elsewhere; name the sweep of hydra.sweeper.tune.earlier, too"
            )


def _not_chosen(results: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each method with final runs that no search budget chooses."""
    rows = [chosen(results, budget)[KEYS] for budget in budgets_of(results)]
    found = set(pd.concat(rows).itertuples(index=False, name=None))
    left_out: dict[tuple[str, str], list[str]] = {}
    for row in results.loc[results["trial"] == 0, KEYS].drop_duplicates().to_numpy():
        cell, method, setting = row
        if tuple(row) not in found:
            left_out.setdefault((cell, method), []).append(setting or "the preset")
    for (cell, method), settings in left_out.items():
        yield (
            f"{method} in {cell}: the final runs with {' and '.join(settings)} are left out, as no "
            "trials here choose them; if the trials are in an earlier sweep "
            "(hydra.sweeper.tune.earlier), name it, too"
        )


def _trial_seeds(results: pd.DataFrame) -> frozenset[int]:
    return frozenset(results.loc[results["trial"] > 0, "seed"])


def _check_trials(results: pd.DataFrame) -> None:
    """Raise InputError if a method's trials lack a seed that other trials have."""
    every = _trial_seeds(results)
    for (cell, method), own in results[results["trial"] > 0].groupby(["cell", "method"]):
        if (seeds := _trial_seeds(own)) != every:
            raise InputError(
                f"{method} in {cell}: its trials have the seeds {sorted(seeds)}, all trials "
                f"together {sorted(every)}; only results of one contest can be joined"
            )


def read_csv(path: Path) -> pd.DataFrame:
    """Read the results from a ``leaderboard.csv`` that ``write`` wrote.

    Columns that earlier versions did not write are empty. Raises InputError for another file.
    """
    words = ["setting", "score_statistic", "overrides", "objective", "control", "budgets"]
    try:
        table = pd.read_csv(path, dtype=dict.fromkeys(words, str))
        if absent := {*KEYS, "seed", "trial", "score"} - {*table}:
            raise ValueError(f"it has no column {min(absent)}")
    except (OSError, ValueError) as error:  # also of a parser
        raise InputError(f"{path}: is no table of a leaderboard: {error}") from error
    missing = [name for name in words if name not in table]
    return table.assign(**dict.fromkeys(missing, "")).fillna(dict.fromkeys(words, ""))
