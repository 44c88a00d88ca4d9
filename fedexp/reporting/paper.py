"""Puts the runs beside the numbers that the paper of their experiment published."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from fedexp.reporting.labels import changes_results, override_key
from fedexp.reporting.runs import Run
from fedexp.reporting.statistics import (
    ROUNDS_TO,
    Interval,
    paired_difference,
    run_statistics,
    smaller_is_better,
)

SAME, SAME_SIGN = "same sign and size", "same sign"
NOT_SHOWN, REVERSED = "no difference shown", "not reproduced"
NOT_RUN, BASELINE, NOT_REACHED = "not run", "baseline", "target not reached"
_SIZE = (0.5, 2.0)
"""Our gain over the published one within these bounds is of the same size."""


@dataclass(frozen=True)
class Cell:
    """One published number and the runs that answer it.

    Attributes:
        experiment: the preset, such as ``fednh/cifar10_dir03``.
        table: where it stands in the paper.
        metric, statistic: what was measured, and of which rounds.
        method: the override that chooses the method.
        overrides: what else makes this cell.
        published: the paper's value; spread: its standard deviation, if any.
        ours: seed -> our value. Empty: not run, or the target was not reached.
        rounds: rounds done by the runs, the smallest; planned: the preset's.
        differs: what the command lines changed beside method, overrides and seed.
        command: repeats the cell.
        ran: whether there is a run of it.
    """

    experiment: str
    table: str
    metric: str
    statistic: str
    method: str
    overrides: tuple[str, ...]
    published: float
    spread: float | None
    ours: Mapping[int, float] = field(default_factory=dict)
    rounds: int = 0
    planned: int = 0
    differs: tuple[str, ...] = ()
    command: str = ""
    ran: bool = False

    @property
    def mean(self) -> float:
        """Our mean over seeds; NaN without any."""
        return sum(self.ours.values()) / len(self.ours) if self.ours else math.nan


@dataclass(frozen=True)
class Verdict:
    """A cell compared with its table's baseline.

    Attributes:
        cell: the published number and ours.
        published_gain: the paper's value minus its baseline's; NaN without a baseline.
        gain: our paired difference; None if a side is missing.
        words: what follows.
    """

    cell: Cell
    published_gain: float
    gain: Interval | None
    words: str


def beside_the_paper(runs: Sequence[Run]) -> list[Verdict]:
    """Every published number of the runs' experiments with ours and a verdict.

    A run answers the rows of its own ``paper:`` list whose method and overrides it has; of several
    rows that fit, those that leave least of its command line unexplained. The first method of a
    table's metric is its baseline. Methods of the list without a run are "not run".
    """
    verdicts = []
    for experiment, members in _by_experiment(runs).items():
        columns: dict[tuple[object, ...], list[Cell]] = {}
        for row in members[0].config["paper"]:
            columns.setdefault(_column(row), []).extend(_cells(experiment, row, members))
        for cells in columns.values():
            # Rows that only differ in the rounds a method needs make one column.
            verdicts += [judge(cell, cells[0]) for cell in cells]
    return verdicts


def judge(cell: Cell, baseline: Cell) -> Verdict:
    """The verdict on ``cell``, whose gain over ``baseline`` is compared with the published one.

    * same sign and size: ours is between half and twice the published gain, or our 95 % interval
      holds it;
    * same sign; * no difference shown: our interval holds zero, with several seeds;
    * not reproduced: the other sign; * target not reached; * not run.
    """
    published = math.nan if cell is baseline else cell.published - baseline.published
    if not cell.ran:
        return Verdict(cell, published, None, NOT_RUN)
    if not cell.ours:
        words = NOT_REACHED if cell.metric.startswith(ROUNDS_TO) else NOT_RUN
        return Verdict(cell, published, None, words)
    if cell is baseline:
        return Verdict(cell, published, None, BASELINE)
    gain = paired_difference(cell.ours, baseline.ours)
    if gain is None:
        return Verdict(cell, published, None, "baseline not run")
    return Verdict(cell, published, gain, _compare(gain, published))


def _compare(gain: Interval, published: float) -> str:
    if gain.n > 1 and not gain.excludes_zero:
        return NOT_SHOWN
    if gain.mean * published <= 0:
        return SAME if gain.mean == published else REVERSED
    low, high = _SIZE
    near = gain.n > 1 and abs(gain.mean - published) <= gain.half_width
    return SAME if near or low <= gain.mean / published <= high else SAME_SIGN


def is_better(verdict: Verdict) -> bool | None:
    """Whether the paper's method beats its baseline there; None for the baseline itself."""
    if math.isnan(verdict.published_gain):
        return None
    return (verdict.published_gain < 0) == smaller_is_better(verdict.cell.metric)


def _by_experiment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.config.get("paper"):
            found.setdefault(str(run.choices.get("experiment")), []).append(run)
    return found


def _column(row: Mapping[str, Any]) -> tuple[object, ...]:
    overrides = [each for each in row["overrides"] if override_key(each) != "rounds"]
    return row["table"], row["metric"], row["statistic"], tuple(overrides)


def _cells(experiment: str, row: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[Cell]:
    for method, value in row["values"].items():
        mine = [run for run in runs if _answers(run, row, method)]
        overrides = tuple(row["overrides"])
        statistics = {run.seed: run_statistics(run, _targets(row["metric"])) for run in mine}
        values = {seed: each.get(row["metric"], {}) for seed, each in statistics.items()}
        differs = {each: None for run in mine for each in _unexplained(run, row, method)}
        yield Cell(
            experiment=experiment,
            table=row["table"],
            metric=row["metric"],
            statistic=row["statistic"],
            method=method,
            overrides=overrides,
            published=float(value),
            spread=row["spread"].get(method),
            ours={seed: v[row["statistic"]] for seed, v in values.items() if row["statistic"] in v},
            rounds=min((len(run.history) for run in mine), default=0),
            planned=max((int(run.config["rounds"]) for run in mine), default=0),
            differs=tuple(differs),
            command=" ".join(["fedexp", f"experiment={experiment}", method, *overrides]),
            ran=bool(mine),
        )


def _answers(run: Run, row: Mapping[str, Any], method: str) -> bool:
    """Whether the run is of this row, and no other row explains more of its command line."""
    if not _fits(run, row, method):
        return False
    left = len(_unexplained(run, row, method))
    return not any(
        len(_unexplained(run, other, name)) < left
        for other in run.config["paper"]
        for name in other["values"]
        if _column(other)[:3] == _column(row)[:3] or other["metric"] == row["metric"]
        if _fits(run, other, name)
    )


def _fits(run: Run, row: Mapping[str, Any], method: str) -> bool:
    """Whether the run has the method and the overrides, however they were set.

    Fewer or more rounds than the row's are a difference and not another cell.
    """
    wanted = [*method.split(), *row["overrides"]]
    return all(_has(run, each) for each in wanted if override_key(each) != "rounds")


def _has(run: Run, override: str) -> bool:
    key, _, value = override.partition("=")
    have = run.values.get(key.lstrip("+"))
    return have is not None and (str(have) == value or have == yaml.safe_load(value))


def _unexplained(run: Run, row: Mapping[str, Any], method: str) -> list[str]:
    """The run's overrides that are neither the row's nor without effect on results."""
    own = {"experiment", "protocol"} | {override_key(each) for each in method.split()}
    left = [each for each in run.overrides if changes_results(override_key(each))]
    left = [each for each in left if override_key(each) not in own]
    return [each for each in left if each.lstrip("+") not in row["overrides"]]


def _targets(metric: str) -> list[float]:
    return [float(metric.removeprefix(ROUNDS_TO))] if metric.startswith(ROUNDS_TO) else []
