"""The random draws that differ between runs with different seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedexp.reporting.runs import Run

_FIXED = "partition.draw_seed"
"""Config key: a seed of the partition alone; null if the run's seed draws the partition."""


def random_sources(runs: Sequence[Run]) -> str:
    """A sentence that names the draws that the seed changes; empty for one seed.

    A partition with a ``draw_seed`` of its own is the same for all seeds. Cohorts are drawn only if
    a round has fewer clients than the population.
    """
    if len({run.seed for run in runs}) < 2:
        return ""
    fixed = dict.fromkeys(run.values.get(_FIXED) for run in runs)
    own = [f"{_FIXED}={value}" for value in fixed if value is not None]
    varied = ["partition"] if None in fixed else []
    varied += ["initial weights"]
    varied += ["cohorts"] if any(map(_draws_cohorts, runs)) else []
    text = f"The seed changes {', '.join(varied)} and batches"
    if not own:
        return f"{text}."
    return f"{text}; the partition is the same for all seeds with {' or '.join(own)}."


def _draws_cohorts(run: Run) -> bool:
    return run.values.get("clients.per_round") != run.values.get("clients.count")
