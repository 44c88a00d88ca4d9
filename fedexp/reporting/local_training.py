"""One sentence about how each method's clients train, which presets may set besides their parts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedexp.reporting.labels import show
from fedexp.reporting.runs import Run

_MOST = 6
"""Largest number of different settings that are listed; more are only counted."""


def local_training(runs: Sequence[Run], varied: Iterable[str]) -> str:
    """The optimizer and clipping of each method; empty if no run has an optimizer.

    For example ``Local training: optimizer=sgd lr=0.02 momentum=0.9 (fedavg); ... (scaffold).``

    Args:
        runs: the runs.
        varied: the keys of the labels, which the rows already name.
    """
    named = set(varied)
    methods: dict[str, dict[str, None]] = {}
    for run in runs:
        if found := _setting(run.values, named):
            methods.setdefault(found, {})[str(run.choices.get("algorithm"))] = None
    if not methods:
        return ""
    if len(methods) > _MOST:
        return f"Local training: {len(methods)} different settings; the table of keys names them."
    alone = len(methods) == 1
    told = [each if alone else f"{each} ({', '.join(own)})" for each, own in methods.items()]
    return f"Local training: {'; '.join(told)}."


def _setting(values: Mapping[str, Any], named: set[str]) -> str:
    """The local training of a run: ``optimizer=sgd lr=0.02 momentum=0.9 local.grad_clip=10``."""
    optimizer = values.get("optimizer")
    if optimizer is None:
        return ""
    words = [] if "optimizer" in named else [f"optimizer={optimizer}"]
    for key in ("lr", "momentum"):
        whole = f"optimizer.{key}"
        if whole in values and whole not in named:
            words.append(f"{key}={show(values[whole])}")
    clip = "local.grad_clip"
    if values.get(clip) is not None and clip not in named:
        words.append(f"{clip}={show(values[clip])}")
    return " ".join(words)
