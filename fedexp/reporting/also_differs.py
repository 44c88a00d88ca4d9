"""A table of config keys that differ between the compared methods and are not in their labels.

For example, the presets ``algorithm=...`` of two methods may have different gradient clipping, or
each method has its own learning rate, which was typed or searched.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedexp.config.keys import is_below
from fedexp.reporting.labels import (
    PARTS,
    Label,
    changes_results,
    follows_seed,
    hashable,
    short_texts,
    show,
)
from fedexp.reporting.origins import Sweep, origin, read_sweeps
from fedexp.reporting.runs import Run
from fedexp.reporting.table import Table

_UNNAMED = ("loss", "regularizer", "gradient", "personalization", "sampler")
_METHODS = ("algorithm", *PARTS)
"""Config groups that make up a method; the table compares runs that differ only in these groups."""
_LEFT_OUT = ("algorithm", *_UNNAMED, "experiment", "protocol", "search")
TITLE = "What else differs between the rows"
NOTE = (
    "typed: on the command line; searched: chosen by a search. Presets set the other values; "
    "compare=aligned gives all methods the same clipping, weights of clients and classifier "
    "without bias, where they can take it."
)


def also_differs(configurations: Mapping[Label, Sequence[Run]]) -> Table | None:
    """The table of the config keys that differ between methods but are not in the labels.

    Methods are compared within one setting: the labels of the compared runs differ only in a
    method's groups (``algorithm``, ``head`` ...). If the parts in a socket have different Python
    classes, the table leaves out the keys of these parts. For heads, aggregators, compression and
    coordination it then shows the names of the parts instead. It never shows names of losses,
    regularizers, gradients, personalizations and samplers, because they make up the method.

    Keys that follow the seed are left out, too.

    Returns:
        A row for each key, a column for each method; None if nothing else differs. A cell says
        whether its value was typed or searched, see ``origins.origin``.
    """
    settings: dict[Label, dict[Label, Run]] = {}
    for label, runs in configurations.items():
        method = tuple(each for each in label if is_below(each[0], _METHODS))
        others = tuple(each for each in label if each not in method)
        settings.setdefault(others, {})[method] = runs[0]
    every = [run for runs in configurations.values() for run in runs]
    seeds = {
        key for key in {key for run in every for key in run.values} if follows_seed(key, every)
    }
    left_out = seeds.union(key for label in configurations for key, _ in label)
    methods = list(dict.fromkeys(method for rows in settings.values() for method in rows))
    found = dict.fromkeys(
        key
        for rows in settings.values()
        for key in _keys([run.values for run in rows.values()], left_out)
    )
    if not found or len(methods) < 2:
        return None
    own = {m: [rows[m] for rows in settings.values() if m in rows] for m in methods}
    sweeps = read_sweeps(run for runs in own.values() for run in runs)
    cells = [[key, *(_cell(key, own[m], sweeps) for m in methods)] for key in found]
    return Table(TITLE, ["key", *short_texts(methods)], cells, notes=[NOTE])


def _keys(every: Sequence[Mapping[str, Any]], left_out: Iterable[str]) -> Iterable[str]:
    """Yield the keys that the table shows: their values differ between the configs ``every``.

    The keys ``left_out`` are not shown, and neither are names of a method's parts.
    """
    of_other_kinds = [name for name in PARTS if _differ(every, f"{name}._target_")]
    for key in dict.fromkeys(key for each in every for key in each):
        if key in PARTS:
            is_shown = key in of_other_kinds
        else:
            is_shown = not key.endswith("_target_") and not is_below(key, of_other_kinds)
        is_shown = is_shown and key not in {*left_out, *_LEFT_OUT} and changes_results(key)
        if is_shown and _differ(every, key):
            yield key


def _differ(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len({hashable(each.get(key)) for each in rows}) > 1


def _cell(key: str, runs: Sequence[Run], sweeps: Mapping[Path, Sweep]) -> str:
    """The method's value of ``key``, or its values in several settings, joined by slashes."""
    return " / ".join(
        dict.fromkeys(_value(key, run, sweeps.get(run.folder.parent)) for run in runs)
    )


def _value(key: str, run: Run, sweep: Sweep | None) -> str:
    """The value with its origin, such as ``0.05 (typed)``; empty if the run has no such key."""
    if key not in run.values:
        return ""
    found = origin(key, run, sweep)
    return f"{show(run.values[key])} ({found})" if found else show(run.values[key])
