"""Entries from outside: their runs beside the runs of a contest, if both had the same task."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedexp.config.keys import COSTS, flatten, is_below
from fedexp.errors import InputError
from fedexp.reporting.leaderboard.results import is_part, read_results, shared_overrides, tuning_of
from fedexp.reporting.leaderboard.tuning import Tuning
from fedexp.reporting.runs import Run, read_runs
from fedexp.reporting.table import Table
from fedexp.tracking.origin import read_origins

_TASK = (
    *("rounds", "clients.count", "clients.per_round", "clients.held_out", "data", "partition"),
    *("model", "local.epochs", "local.steps", "local.batch_size"),
)
_PLACES = (*COSTS, "data.root", "data.path", "data.test_path")


@dataclass(frozen=True)
class Entry:
    """An artefact that was checked.

    Attributes:
        name: the name of its file.
        digest: the SHA-256 of the file.
        runs: the unpacked folder of its runs.
        checked: what was checked, in words.
        by: who checked it.
    """

    name: str
    digest: str
    runs: Path
    checked: str
    by: str


def with_entries(
    results: pd.DataFrame, sources: Sequence[Path], entries: Sequence[Entry]
) -> tuple[pd.DataFrame, Table | None, list[str]]:
    """Add the methods of entries to the results of a contest.

    A method of an entry is named with the entry's number, as ``mine [1]``. Methods of the contest
    itself count only with the contest's own runs.

    Args:
        results: the results of ``files.read_contest``.
        sources: the folders and files that they were read from, at least one folder.
        entries: the entries.

    Returns:
        The results, a table of the entries, and a line for each entry that is left out. The table
        is None if there are no entries.
    """
    sweeps = [each for each in sources if each.is_dir()]
    runs = read_runs(sweeps)[0]
    names = " ".join(results["method"].unique())
    unnamed = shared_overrides(runs) - {*names.split()} if len(sweeps) == len(sources) else set()
    first = max(map(int, re.findall(r" \[(\d+)\]", names)), default=0) + 1
    frames, problems = [results], []
    rows: list[list[Any]] = []
    for entry in entries:
        try:
            _check(entry, sweeps[0], runs, results)
            found, left_out = read_results(
                [entry.runs], lambda each: is_part(each) and each not in unnamed
            )
        except InputError as error:
            problems.append(f"{entry.name}: left out: {error}")
            continue
        problems += [f"{entry.name}: {line}" for line in left_out]
        new = found[~found["method"].isin(results["method"])]
        if new.empty:
            problems.append(f"{entry.name}: left out: the contest has runs of all of its methods")
            continue
        mark = f"[{first + len(rows)}]"
        methods = ", ".join(sorted(new["method"].unique()))
        rows.append([mark, entry.name, methods, entry.digest[:16], entry.checked, entry.by])
        frames.append(_marked(new, mark))
    columns = ["entry", "file", "methods", "SHA-256", "checked", "by"]
    table = Table("Entries from outside", columns, rows) if rows else None
    return pd.concat(frames), table, problems


def _marked(new: pd.DataFrame, mark: str) -> pd.DataFrame:
    """Add the mark to the names of the entry's methods, also where they are controls."""
    own = set(new["method"])
    return new.assign(
        method=new["method"] + f" {mark}",
        control=[f"{each} {mark}" if each in own else each for each in new["control"]],
    )


def _check(entry: Entry, contest: Path, runs: Iterable[Run], results: pd.DataFrame) -> None:
    """Raise InputError if the entry was tuned otherwise, or had another task in a cell.

    A run whose cell and seed the contest has in a table only is compared with another seed's run.
    """
    ours, theirs = tuning_of(contest), tuning_of(entry.runs)
    if (of_ours := _trials(ours)) != (of_theirs := _trials(theirs)):
        raise InputError(f"its trials have {of_theirs}; the contest's have {of_ours}")
    tasks = {_cell(run): run for run in runs}
    of_cell = {cell: run for (cell, _), run in tasks.items()}
    ran = {*tasks, *zip(results["cell"], results["seed"], strict=True)}
    for run in read_runs([entry.runs])[0]:
        cell, seed = _cell(run)
        if (cell, seed) not in ran:
            raise InputError(f"cell {cell} with seed {seed} is not in the contest")
        if (known := tasks.get((cell, seed), of_cell.get(cell))) is None:
            raise InputError(f"the contest has cell {cell} in a table only, without its task")
        if wrong := next(_other_task(run, known), None):
            raise InputError(f"in cell {cell} it has {wrong}")


def _trials(tuning: Tuning) -> str:
    """What the trials of all methods have in common."""
    return f"budgets {tuning.budgets}, seeds {tuning.seeds} and statistic {tuning.statistic}"


def _cell(run: Run) -> tuple[str, int]:
    return str(run.choices.get("experiment")).rpartition("/")[2], run.seed


def _other_task(run: Run, known: Run) -> Iterator[str]:
    theirs, ours = _task(run.config), _task(known.config)
    seeds = run.seed, known.seed
    for key in sorted(theirs.keys() | ours.keys()):
        values = theirs.get(key), ours.get(key)
        if values[0] != values[1] and values != seeds:  # a key may follow the seed
            yield f"{key}={values[0]}; the contest has {values[1]}"
    starts = [read_origins(each.folder) for each in (run, known)]
    if seeds[0] == seeds[1] and all(starts) and starts[0][0]["data"] != starts[1][0]["data"]:
        yield "other data, or another partition of them"


def _task(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = flatten(config)
    return {
        k: _named(v) for k, v in flat.items() if is_below(k, _TASK) and not is_below(k, _PLACES)
    }


def _named(value: Any) -> Any:
    """The value; of an absolute path only the name, since an artefact has no more of it."""
    return Path(value).name if isinstance(value, str) and value.startswith("/") else value
