"""The setting of runs in one line: data, partition, clients, rounds and model."""

from __future__ import annotations

from collections.abc import Sequence

from fedexp.reporting.labels import show
from fedexp.reporting.runs import Run

_DEGREES = ("partition.beta", "partition.alphas", "partition.classes_per_client")
"""Config keys that say how much the clients' data differ."""
_MOST = 4
"""Largest number of values of a key that are listed; more values are only counted."""


def setting_of(runs: Sequence[Run]) -> str:
    """The setting as a line: ``data=digits, partition=dirichlet, 10 of 20 clients ...``.

    If runs differ in a value, all values are shown, joined by slashes.
    """
    parts = [
        f"{key}={found}" for key in ("data", "partition", *_DEGREES) if (found := _all(runs, key))
    ]
    clients = _joined([f"{_of(r, 'clients.per_round')} of {_of(r, 'clients.count')}" for r in runs])
    parts += [f"{clients} clients a round", f"{_all(runs, 'rounds')} rounds"]
    parts += [f"model={found}" for found in [_all(runs, "model")] if found]
    return ", ".join(parts)


def _all(runs: Sequence[Run], key: str) -> str:
    """The values of a key in the runs that have it; empty if no run has the key."""
    return _joined([_of(run, key) for run in runs if run.values.get(key) is not None])


def _of(run: Run, key: str) -> str:
    return show(run.values.get(key))


def _joined(values: Sequence[str]) -> str:
    different = list(dict.fromkeys(values))
    return "/".join(different) if len(different) <= _MOST else f"{len(different)} values"
