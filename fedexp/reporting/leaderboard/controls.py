"""Controls of a contest: FedAvg with a method's recipe and without its idea.

The recipe of a method is what its preset sets besides the idea, such as clipping, another optimizer
or equal weights of clients. A gain over FedAvg may come from the recipe; a gain over the control
does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedexp.config.keys import override_key
from fedexp.errors import InputError
from fedexp.reporting.jobs import Job, by_row, values_of
from fedexp.reporting.labels import PARTS

BASELINE = "fedavg"
Controls = Mapping[str, Mapping[str, str]]
"""Algorithm -> key -> value, the overrides that make FedAvg the algorithm's control."""
_KEY = "hydra.sweeper.tune.controls"


def read_controls(node: Mapping[str, Mapping[str, Any]]) -> Controls:
    """The controls in ``hydra.sweeper.tune.controls``. InputError for several values of a key."""
    found: dict[str, dict[str, str]] = {}
    for algorithm, overrides in node.items():
        for key, value in overrides.items():
            values = values_of(value)
            if len(values) != 1:
                raise InputError(f"{_KEY}.{algorithm}.{key}={value}: should be one value")
            found.setdefault(algorithm, {})[key] = values[0]
    return found


def with_controls(jobs: list[Job], controls: Controls) -> list[Job]:
    """The table's jobs; behind the jobs of each method, those of its control, if it has one.

    A control that several methods share is listed once.
    """
    if not controls:
        return jobs
    rows = by_row(jobs).values()
    every = [(own, [control_of(job, controls) for job in own]) for own in rows]
    flat = (tuple(job) for own, beside in every for job in [*own, *beside] if job is not None)
    return [list(job) for job in dict.fromkeys(flat)]


def control_of(job: Job, controls: Controls) -> Job | None:
    """The job of the control: the same job with FedAvg; None if the algorithm has no control.

    Keys of the method's own parts are left out, since FedAvg may lack them. A key of the control
    that the job has already set keeps the job's value.
    """
    keys = set(map(override_key, job))
    own = tuple(f"{part}." for part in PARTS if part not in keys)
    algorithm = algorithm_of(job)
    if algorithm not in controls:
        return None
    kept = [each for each in job if not override_key(each).startswith(own)]
    place = next(n for n, each in enumerate(kept) if override_key(each) == "algorithm")
    kept[place] = f"algorithm={BASELINE}"
    # The seed stays last.
    added = [f"{key}={value}" for key, value in controls[algorithm].items() if key not in keys]
    return [*kept[: place + 1], *added, *kept[place + 1 :]]


def algorithm_of(job: Iterable[str]) -> str:
    """The job's algorithm. Raises InputError if the job names no algorithm."""
    for each in job:
        if override_key(each) == "algorithm":
            return each.partition("=")[2]
    raise InputError("hydra.sweeper.tune: each part of the table needs an algorithm")
