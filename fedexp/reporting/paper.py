"""Puts the runs beside the numbers that the paper of their experiment published."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import stdev
from typing import Any

import yaml

from fedexp.reporting.labels import changes_results
from fedexp.reporting.runs import Run
from fedexp.reporting.statistics import (
    COSTS_TO,
    ROUNDS_TO,
    SMOOTHED_ROUNDS_TO,
    SMOOTHING,
    Interval,
    Measures,
    paired_difference,
    run_statistics,
)
from fedexp.state.run_folder import override_key

SAME, SAME_SIGN = "same sign and size", "same sign"
NOT_SHOWN, REVERSED = "no difference shown", "not reproduced"
NOT_RUN, BASELINE, NOT_REACHED = "not run", "baseline", "target not reached"
NOT_FINISHED, NOT_MEASURED = "not finished", "not measured"
TOO_SHORT, DIVERGED = "too few rounds to smooth", "diverged"
_NO_BASELINE = {NOT_REACHED: "baseline below target", TOO_SHORT: "baseline too short to smooth"}
_SIZE = (0.5, 2.0)
"""Our gain over the published one within these bounds is of the same size."""
_NO_GAIN = 1e-6
"""A gain below this, of rounding, is none where none was published."""
_ABSENT = object()


@dataclass(frozen=True)
class Cell:
    """One published number and the runs that answer it.

    Attributes:
        experiment: the preset, such as ``fednh/cifar10_dir03``.
        table: where it stands in the paper.
        metric, statistic: what was measured, and of which rounds; ``rounds_to_smoothed/*`` where
            ours are of smoothed curves.
        method: the override that chooses the method.
        overrides: what else makes this cell.
        published: the paper's value; spread: its standard deviation, if any.
        ours: seed -> our value. Empty: not run, or the target was not reached.
        rounds: rounds done by the runs, the smallest; planned: those of their configs.
        measured: how many of the rounds measured the global accuracy, the smallest.
        differs: what the command lines changed beside method, overrides and seed.
        command: repeats the cell.
        seeds: how many seeds were run, with or without a value; 0 is a cell that was not run.
        repeated: whether a seed was run more than once; its longest run counts.
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
    measured: int = 0
    differs: tuple[str, ...] = ()
    command: str = ""
    seeds: int = 0
    repeated: bool = False

    @property
    def column(self) -> tuple[str, ...]:
        """What makes it one column of a table; rounds do not, which a method may need more of."""
        return self.table, self.metric, self.statistic, *_without_rounds(self.overrides)

    @property
    def partial(self) -> bool:
        """Whether some seeds have a value and others have none."""
        return 0 < len(self.ours) < self.seeds

    @property
    def ran(self) -> bool:
        """Whether there is a run of it."""
        return self.seeds > 0

    @property
    def mean(self) -> float:
        """Our mean over seeds; NaN without any."""
        return sum(self.ours.values()) / len(self.ours) if self.ours else math.nan

    @property
    def std(self) -> float:
        """The standard deviation of ours (n - 1); NaN for fewer than two seeds, or if one is."""
        values = list(self.ours.values())
        return stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else math.nan


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


def beside_the_paper(runs: Sequence[Run], smooth: bool = False) -> list[Verdict]:
    """Every published number of the runs' experiments with ours and a verdict.

    A run answers the rows of its experiment's ``paper:`` lists whose method and overrides it has;
    of several rows that fit, those that leave least of its command line unexplained. Runs of one
    cell whose command lines differ are separate cells. The first method of a table's metric is its
    baseline; of its runs those with the command line most alike are compared with. Methods without
    a run are "not run". With ``smooth``, rounds to a target are those of smoothed curves.
    """
    verdicts = []
    for experiment, members in _by_experiment(runs).items():
        rows = _rows(members)
        answers = _answers(rows, members)
        columns: dict[tuple[str, ...], list[Cell]] = {}
        for number, row in enumerate(rows):
            for method in row["values"]:
                own = answers.get((number, method), [])
                for group in _alike(own, row, method) or [[]]:
                    cell = _cell(experiment, row, method, group, smooth)
                    columns.setdefault(cell.column, []).append(cell)
        for cells in columns.values():
            verdicts += [judge(cell, _baseline(cell, cells)) for cell in cells]
    return verdicts


def judge(cell: Cell, baseline: Cell) -> Verdict:
    """The verdict on ``cell``, whose gain over ``baseline`` is compared with the published one.

    * same sign and size: ours is between half and twice the published gain, or our 95 % interval
      holds it;
    * same sign; * no difference shown: our interval holds zero, with several seeds;
    * not reproduced: the other sign, or a gain where none was published;
    * in 1 of 3 seeds: the others have no value, and the gain of these alone would mislead;
    * diverged; * target not reached; * not finished; * not measured; * too few rounds to smooth;
    * not run; each of these also with "baseline", where only that has no value ("baseline below
      target" is one that never reached it); * no seed in common.
    """
    is_baseline = cell.method == baseline.method
    published = math.nan if is_baseline else cell.published - baseline.published
    if not cell.ran:
        return Verdict(cell, published, None, NOT_RUN)
    if not cell.ours:
        return Verdict(cell, published, None, _why_no_value(cell))
    if is_baseline:
        return Verdict(cell, published, None, BASELINE)
    if cell.partial:
        return Verdict(cell, published, None, _in_seeds(cell))
    gain = paired_difference(cell.ours, baseline.ours)
    if gain is None or baseline.partial:
        return Verdict(cell, published, None, _why_no_pair(baseline))
    if not math.isfinite(gain.mean):
        return Verdict(cell, published, None, _who_diverged(cell))
    return Verdict(cell, published, gain, _compare(gain, published))


def _why_no_value(cell: Cell) -> str:
    if cell.rounds < cell.planned:
        return NOT_FINISHED
    if cell.metric.startswith(SMOOTHED_ROUNDS_TO) and cell.measured < SMOOTHING[0]:
        return TOO_SHORT
    return NOT_REACHED if cell.metric.startswith(COSTS_TO) else NOT_MEASURED


def _why_no_pair(baseline: Cell) -> str:
    if not baseline.ran:
        return f"{BASELINE} {NOT_RUN}"
    if baseline.partial:
        return f"{BASELINE} {_in_seeds(baseline)}"
    if baseline.ours:
        return "no seed in common"
    why = _why_no_value(baseline)
    return _NO_BASELINE.get(why, f"{BASELINE} {why}")


def _in_seeds(cell: Cell) -> str:
    return f"in {len(cell.ours)} of {cell.seeds} seeds"


def _who_diverged(cell: Cell) -> str:
    own = not all(map(math.isfinite, cell.ours.values()))
    return DIVERGED if own else f"{BASELINE} {DIVERGED}"


def _compare(gain: Interval, published: float) -> str:
    shows_none = gain.n > 1 and not gain.excludes_zero
    if published == 0:
        return SAME if shows_none or abs(gain.mean) < _NO_GAIN else REVERSED
    if shows_none:
        return NOT_SHOWN
    if gain.mean * published <= 0:
        return REVERSED
    low, high = _SIZE
    near = gain.n > 1 and abs(gain.mean - published) <= gain.half_width
    return SAME if near or low <= gain.mean / published <= high else SAME_SIGN


def _by_experiment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.config.get("paper"):
            found.setdefault(str(run.choices.get("experiment")), []).append(run)
    return found


def _rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The rows of all runs' lists: those of older runs may have had fewer methods."""
    found: dict[str, dict[str, Any]] = {}
    for row in (row for run in runs for row in run.config["paper"]):
        key = repr([row[name] for name in ("table", "metric", "statistic", "overrides")])
        known = found.setdefault(key, {**row, "values": {}, "spread": {}})
        known["values"] |= row["values"]
        known["spread"] |= row["spread"]
    return list(found.values())


def _without_rounds(overrides: Sequence[str]) -> list[str]:
    return [each for each in overrides if override_key(each) != "rounds"]


def _baseline(cell: Cell, cells: Sequence[Cell]) -> Cell:
    """Of the first method's cells the one whose command line is most like the cell's own."""
    first = [each for each in cells if each.method == cells[0].method]
    return min(first, key=lambda each: len(set(each.differs) ^ set(cell.differs)))


def _alike(runs: Sequence[Run], row: Mapping[str, Any], method: str) -> list[list[Run]]:
    """Runs with the same unexplained overrides together, those with the fewest first."""
    groups: dict[frozenset[str], list[Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(_unexplained(run, row, method)), []).append(run)
    return [groups[each] for each in sorted(groups, key=len)]


def _cell(
    experiment: str, row: Mapping[str, Any], method: str, runs: Sequence[Run], smooth: bool
) -> Cell:
    metric, statistic, overrides = row["metric"], row["statistic"], tuple(row["overrides"])
    asked = Measures(targets=_targets(metric), metrics=(metric,), smooth=smooth)
    if smooth and metric.startswith(ROUNDS_TO):
        metric = SMOOTHED_ROUNDS_TO + metric.removeprefix(ROUNDS_TO)
    longest = {run.seed: run for run in sorted(runs, key=lambda run: len(run.history))}
    values = {seed: run_statistics(run, asked).get(metric, {}) for seed, run in longest.items()}
    counted = longest.values()
    differs = {each: None for run in runs for each in _unexplained(run, row, method)}
    return Cell(
        experiment=experiment,
        table=row["table"],
        metric=metric,
        statistic=statistic,
        method=method,
        overrides=overrides,
        published=float(row["values"][method]),
        spread=row["spread"].get(method),
        ours={seed: each[statistic] for seed, each in values.items() if statistic in each},
        rounds=min((len(run.history) for run in counted), default=0),
        planned=max((int(run.config["rounds"]) for run in counted), default=0),
        measured=min((_measured(run) for run in counted), default=0),
        differs=tuple(differs),
        command=" ".join(["fedexp", f"experiment={experiment}", method, *overrides]),
        seeds=len(values),
        repeated=len(runs) > len(values),
    )


def _answers(
    rows: Sequence[Mapping[str, Any]], runs: Sequence[Run]
) -> dict[tuple[int, str], list[Run]]:
    """(Row's number, method) -> the runs that answer it.

    Of the rows with one metric a run answers those that leave least of its command line
    unexplained: a run with ``clients.per_round=30`` the row that has it, and not the one without.
    """
    found: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        by_metric: dict[str, list[tuple[int, int, str]]] = {}
        for number, row in enumerate(rows):
            for method in row["values"]:
                if _fits(run, row, method):
                    left = len(_unexplained(run, row, method))
                    by_metric.setdefault(row["metric"], []).append((left, number, method))
        for fitting in by_metric.values():
            least = min(left for left, _, _ in fitting)
            for left, number, method in fitting:
                if left == least:
                    found.setdefault((number, method), []).append(run)
    return found


def _fits(run: Run, row: Mapping[str, Any], method: str) -> bool:
    """Whether the run has the method and the overrides, however they were set.

    Fewer or more rounds than the row's are a difference and not another cell.
    """
    wanted = _without_rounds([*method.split(), *row["overrides"]])
    return all(_has(run, each) for each in wanted)


def _has(run: Run, override: str) -> bool:
    have = run.values.get(override_key(override), _ABSENT)
    text = override.partition("=")[2]
    return have is not _ABSENT and (str(have) == text or have == _value(text))


def _unexplained(run: Run, row: Mapping[str, Any], method: str) -> list[str]:
    """The run's overrides that are neither the row's nor without effect on results."""
    own = {"experiment", "protocol"} | {override_key(each) for each in method.split()}
    explained = {_parsed(each) for each in row["overrides"]}
    left = [each for each in run.overrides if changes_results(override_key(each))]
    left = [each for each in left if override_key(each) not in own]
    return [each for each in left if _parsed(each) not in explained]


def _parsed(override: str) -> tuple[str, str]:
    """Key and value of an override, so that ``0.30`` and ``0.3`` are the same."""
    return override_key(override), repr(_value(override.partition("=")[2]))


@cache
def _value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _measured(run: Run) -> int:
    return sum("global/accuracy" in row for row in run.history)


def _targets(metric: str) -> tuple[float, ...]:
    return (float(metric.removeprefix(ROUNDS_TO)),) if metric.startswith(ROUNDS_TO) else ()
