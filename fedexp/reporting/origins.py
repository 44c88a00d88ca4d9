"""The origin of a value in a run's config: it was typed, a search chose it, or a preset set it."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedexp.config.keys import override_key
from fedexp.reporting.runs import UNREADABLE, Run, read_yaml

_RANGE = re.compile(r"(choice|range|interval|glob|shuffle|sort|tag)\(|[^\[{'\"].*,")
"""Matches the value of an override that gives each job of a sweep its own value."""


@dataclass(frozen=True)
class Sweep:
    """The keys that a sweep sets in its jobs, from its ``multirun.yaml``.

    Attributes:
        typed: the keys on the command line.
        searched: the keys whose values a search or a contest chose.
        trials: the number of trials behind such a choice; 0 if nothing was searched.
        is_search: whether every job is a trial.
    """

    typed: frozenset[str]
    searched: frozenset[str]
    trials: int
    is_search: bool


def read_sweep(folder: Path) -> Sweep | None:
    """Read the sweep in ``folder``; None if there is no sweep, or its file cannot be read."""
    try:
        node = read_yaml(folder / "multirun.yaml")["hydra"]
        task, sweeper = list(map(str, node["overrides"]["task"])), node["sweeper"]
        typed = frozenset(map(override_key, task))
        if node["runtime"]["choices"]["hydra/sweeper"] == "optuna":
            ranges = [override_key(each) for each in task if _RANGE.match(each.partition("=")[2])]
            searched = frozenset([*(sweeper["params"] or {}), *ranges])
            trials = len(list(folder.glob("*/summary.json")))
            return Sweep(typed, searched, trials, is_search=True)
        keys, trials = _contest(sweeper.get("tune") or {})
    except UNREADABLE:
        return None
    return Sweep(typed, keys, trials, is_search=False)


def read_sweeps(runs: Iterable[Run]) -> dict[Path, Sweep]:
    """Folder -> sweep, for the sweeps of the runs."""
    folders = dict.fromkeys(run.folder.parent for run in runs)
    return {each: sweep for each in folders if (sweep := read_sweep(each)) is not None}


def searched_keys(runs: Iterable[Run]) -> frozenset[str]:
    """The searched keys of each search that has several trials among the runs."""
    trials = Counter(run.folder.parent for run in runs)
    several = [read_sweep(folder) for folder, n in trials.items() if n > 1]
    return frozenset(key for each in several if each and each.is_search for key in each.searched)


def origin(key: str, run: Run, sweep: Sweep | None) -> str:
    """``typed``, ``searched, 20 trials``, or an empty text for a value that a preset set.

    Args:
        key: the dotted key, or the config group.
        run: the run.
        sweep: the run's sweep; None for a run without sweep.
    """
    if key not in map(override_key, run.overrides):
        return ""
    if sweep and key in sweep.searched:
        return f"searched, {sweep.trials} trial{'s' if sweep.trials != 1 else ''}"
    return "typed" if sweep is None or key in sweep.typed else ""


def _contest(tune: Mapping[str, Any]) -> tuple[frozenset[str], int]:
    """The keys that a contest tunes, and its largest number of trials."""
    if not tune.get("budgets"):
        return frozenset(), 0
    own = [key for axes in tune["own"].values() for key in axes]
    every = [*tune["common"], *own, *(tune.get("alone") or {})]  # an earlier version has no alone
    return frozenset(every), max(tune["budgets"])
