"""The jobs of a sweep as overrides: jobs that differ only in the seed are a row."""

from collections.abc import Iterable, Sequence
from typing import Any

Job = list[str]
"""The overrides of one run."""


def unseeded(job: Iterable[str]) -> Job:
    """Remove the seed from a job's overrides."""
    return [each for each in job if not each.startswith("seed=")]


def by_row(jobs: Iterable[Job]) -> dict[tuple[str, ...], list[Job]]:
    """The overrides without the seed -> the jobs that have them, one for each seed."""
    rows: dict[tuple[str, ...], list[Job]] = {}
    for job in jobs:
        rows.setdefault(tuple(unseeded(job)), []).append(job)
    return rows


def without_seeds(jobs: Iterable[Job]) -> list[Job]:
    """Keep one job of each row."""
    return [own[-1] for own in by_row(jobs).values()]


def seed_by_seed(jobs: Sequence[Job]) -> list[Job]:
    """All jobs of the first seed, then all of the second, and so on."""
    seeds = [[each for each in job if each.startswith("seed=")] for job in jobs]
    order = [*dict.fromkeys(map(tuple, seeds))]
    ranked = sorted(zip(seeds, jobs, strict=True), key=lambda pair: order.index(tuple(pair[0])))
    return [job for _, job in ranked]


def values_of(value: Any) -> list[str]:
    """The values of an axis, which is a list, a single value, or a text such as ``a,b,c``."""
    if isinstance(value, str) and not value.startswith("["):  # "[...]" is one value
        return [each.strip() for each in value.split(",")]
    return [_typed(each) for each in (value if isinstance(value, list) else [value])]


def _typed(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
