"""What tells runs apart: the keys in which their configs differ, without those that follow."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from fedexp.report.runs import Run

_IGNORED = ("seed", "resume", "paper", "objective")
_IGNORED_GROUPS = ("tracking", "checkpoint", "engine", "limits", "evaluation", "method", "hydra")
_IGNORED_KEYS = ("clients.ram_gib", "data.cache", "data.root")
Label = tuple[tuple[str, str], ...]
"""Key and value, in the order of the columns, such as ``(("algorithm", "fedavg"),)``."""


def label_runs(runs: Sequence[Run]) -> list[Label]:
    """For each run the keys in which the runs differ, seed and cost of computing aside.

    Keys that the command lines name come first, then config groups, then single values. A key
    that keys before it determine is left out: with ``algorithm`` among them, ``head`` and ``loss``
    say nothing new.

    Returns:
        One label a run; all have the same keys. Empty labels if no key differs.
    """
    columns: list[tuple[str, list[Hashable]]] = []
    parts: list[tuple[Hashable, ...]] = [() for _ in runs]
    for key in _candidates(runs):
        values = [_hashable(run.values.get(key)) for run in runs]
        joined = [(*part, value) for part, value in zip(parts, values, strict=True)]
        if len(set(joined)) > len(set(parts)):
            columns.append((key, values))
            parts = joined
    return [tuple((key, show(values[n])) for key, values in columns) for n in range(len(runs))]


def text(label: Label) -> str:
    """A label as overrides: ``algorithm=fedavg partition.beta=0.1``; ``all`` if it is empty."""
    return " ".join(f"{key}={value}" for key, value in label) or "all"


def show(value: object) -> str:
    """A config's value as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple | list):
        return f"[{','.join(map(show, value))}]"
    return str(value)


def changes_results(key: str) -> bool:
    """Whether a key can change what a method learns, and not only its cost or its records."""
    if key in _IGNORED or key in _IGNORED_KEYS:
        return False
    return key.split(".")[0].split("/")[0].split("@")[0] not in _IGNORED_GROUPS


def override_key(override: str) -> str:
    """The key of an override such as ``+partition.beta=0.1``."""
    return override.lstrip("+~").partition("=")[0]


def _candidates(runs: Sequence[Run]) -> Iterable[str]:
    """All keys of all runs, those of the command lines first, each once."""
    typed = [override_key(each) for run in runs for each in run.overrides]
    groups = [key for run in runs for key in run.choices]
    rest = [key for run in runs for key in run.values]
    # An experiment's name says less than what it sets.
    late = [key for key in typed + groups if key in ("experiment", "protocol")]
    order = [*(key for key in typed + groups if key not in late), *rest, *late]
    return (key for key in dict.fromkeys(order) if changes_results(key))


def _hashable(value: object) -> Hashable:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple((key, _hashable(each)) for key, each in value.items())
    return value
