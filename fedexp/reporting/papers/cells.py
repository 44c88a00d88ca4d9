"""Published numbers, each with the runs that reproduce it."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import stdev
from typing import Any

import yaml

from fedexp.config.keys import override_key
from fedexp.reporting import statistics
from fedexp.reporting.interval import AtLeast
from fedexp.reporting.labels import changes_results
from fedexp.reporting.papers.published import Published, merged_rows
from fedexp.reporting.runs import Run
from fedexp.reporting.setting import random_sources
from fedexp.reporting.statistics import ROUNDS_TO, Measures, mean_of_last, run_statistics

_ABSENT = object()


@dataclass(frozen=True)
class Cell:
    """One published number and the runs that reproduce it.

    Attributes:
        experiment: the preset, such as ``fednh/cifar10_dir03``.
        table: the table of the paper.
        metric: the metric; ``rounds_to_smoothed/*`` if we count rounds on smoothed curves.
        statistic: the statistic over rounds.
        method: the overrides that choose the method, separated by spaces.
        overrides: the other overrides of this cell.
        published: the published value.
        spread: the published standard deviation; None if the paper has none.
        ours: seed -> our value; seeds without a value, and unfinished runs, are absent. A seed that
            did not reach its target has the cost of its whole run, as ``AtLeast``.
        recent: seed -> the mean of the last five measurements, if the statistic is ``best``.
        rounds: the number of rounds that were done, in the finished run with the fewest; of all
            runs, if none is finished.
        planned: the number of rounds in the config, in the run with the most.
        measured: the number of rounds that measured the global accuracy, in the run with the
            fewest.
        differs: further overrides of the runs that can change results, besides ``method`` and
            ``overrides``.
        command: the command that repeats the cell.
        seeds: the number of seeds with a finished run, with or without a value; if there is none,
            of those that were begun. 0 if the cell was not run.
        repeated: whether a seed was run more than once; then the longest run of the seed counts.
        lacks: a hint for a cell without runs: the overrides of ``method`` that are in none of the
            runs with the first override of ``method``. Empty if no run has the first override.
        varies: a sentence about the random draws that the seeds change.
        better: headline metric -> ``higher`` or ``lower``, whichever is better.
        folders: the folders of the runs.
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
    recent: Mapping[int, float] = field(default_factory=dict)
    rounds: int = 0
    planned: int = 0
    measured: int = 0
    differs: tuple[str, ...] = ()
    command: str = ""
    seeds: int = 0
    repeated: bool = False
    lacks: tuple[str, ...] = ()
    varies: str = ""
    better: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()

    @property
    def column(self) -> tuple[str, ...]:
        """Identifies the column of the published table; overrides of ``rounds`` do not matter."""
        return self.table, self.metric, self.statistic, *_without_rounds(self.overrides)

    @property
    def partial(self) -> bool:
        """Whether some seeds have a value and others have none."""
        return 0 < len(self.ours) < self.seeds

    @property
    def at_bound(self) -> int:
        """The number of seeds that did not reach the target."""
        return sum(isinstance(value, AtLeast) for value in self.ours.values())

    @property
    def has_value(self) -> bool:
        """Whether some seed has a value that is not only a bound."""
        return len(self.ours) > self.at_bound

    @property
    def ran(self) -> bool:
        """Whether the cell has been run."""
        return self.seeds > 0

    @property
    def mean(self) -> float:
        """Our mean over seeds, a lower bound if a seed is at its bound; NaN without a value."""
        return sum(self.ours.values()) / len(self.ours) if self.ours else math.nan

    @property
    def std(self) -> float:
        """Our standard deviation (n - 1); NaN for one seed, infinite values, or bounds."""
        values = list(self.ours.values())
        known = all(map(math.isfinite, values)) and not self.at_bound
        return stdev(values) if len(values) > 1 and known else math.nan


def cells(runs: Sequence[Run], smooth: bool = False) -> Iterator[Cell]:
    """Yield each published number of the runs' experiments, with our values for it.

    A run belongs to a row of its preset's ``paper:`` list if it has the row's method and overrides.
    If several rows of one metric fit, the run belongs to the rows that contain most of its
    overrides. Runs of one row whose overrides differ become separate cells. If ``smooth`` is true,
    rounds to a target are counted on smoothed curves.
    """
    for experiment, members in _by_experiment(runs).items():
        rows = merged_rows(members)
        answers = _answers(rows, members)
        for number, row in enumerate(rows):
            for method in row.values:
                own = answers.get((number, method), [])
                lacks = () if own else _lacking(members, method)
                for group in _alike(own, row, method) or [[]]:
                    yield replace(_cell(experiment, row, method, group, smooth), lacks=lacks)


def _lacking(runs: Sequence[Run], method: str) -> tuple[str, ...]:
    """The overrides of ``method`` that are in no run with the method's first override.

    Empty if no run has the first override.
    """
    first, *others = method.split()
    near = [run for run in runs if _has(run, first)]
    return tuple(each for each in others if near and not any(_has(run, each) for run in near))


def _by_experiment(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        if run.config.get("paper"):
            found.setdefault(str(run.choices.get("experiment")), []).append(run)
    return found


def _without_rounds(overrides: Sequence[str]) -> list[str]:
    return [each for each in overrides if override_key(each) != "rounds"]


def _alike(runs: Sequence[Run], row: Published, method: str) -> list[list[Run]]:
    """Group runs by their ``_unexplained`` overrides; groups with few overrides come first."""
    groups: dict[frozenset[str], list[Run]] = {}
    for run in runs:
        groups.setdefault(frozenset(_unexplained(run, row, method)), []).append(run)
    return [groups[each] for each in sorted(groups, key=len)]


def _cell(experiment: str, row: Published, method: str, runs: Sequence[Run], smooth: bool) -> Cell:
    metric, statistic, overrides = row.metric, row.statistic, tuple(row.overrides)
    counts_rounds = metric.startswith(ROUNDS_TO)
    targets = (float(metric.removeprefix(ROUNDS_TO)),) if counts_rounds else ()
    asked = Measures(targets, (metric,), smooth)
    if smooth and counts_rounds:
        metric = statistics.SMOOTHED_ROUNDS_TO + metric.removeprefix(ROUNDS_TO)
    ranked = sorted(runs, key=lambda run: (run.finished, len(run.history)))
    longest = {run.seed: run for run in ranked}
    finished = {seed: run for seed, run in longest.items() if run.finished}
    values = {seed: run_statistics(run, asked).get(metric, {}) for seed, run in finished.items()}
    counted = (finished or longest).values()
    measured = [sum("global/accuracy" in each for each in run.history) for run in counted]
    differs = {each: None for run in runs for each in _unexplained(run, row, method)}
    recent = {seed: mean_of_last(run.history, metric) for seed, run in finished.items()}
    return Cell(
        experiment=experiment,
        table=row.table,
        metric=metric,
        statistic=statistic,
        method=method,
        overrides=overrides,
        published=float(row.values[method]),
        spread=row.spread.get(method),
        ours={seed: each[statistic] for seed, each in values.items() if statistic in each},
        recent=recent if statistic == "best" else {},
        rounds=min((len(run.history) for run in counted), default=0),
        planned=max((int(run.config["rounds"]) for run in counted), default=0),
        measured=min(measured, default=0),
        differs=tuple(differs),
        command=" ".join(["fedexp", f"experiment={experiment}", method, *overrides]),
        seeds=len(counted),
        repeated=len(runs) > len(longest),
        varies=random_sources(runs),
        better=runs[0].headlines if runs else {},
        folders=tuple(run.folder for run in runs),
    )


def _answers(rows: Sequence[Published], runs: Sequence[Run]) -> dict[tuple[int, str], list[Run]]:
    """(Number of a row, method) -> the runs that belong to this row and method.

    A run may fit several rows of one metric. An override of the run is unexplained by a row if it
    can change results and neither the row nor the method sets it. The run belongs to the rows with
    the fewest unexplained overrides. So a run with ``clients.per_round=30`` belongs to the row with
    this override.
    """
    found: dict[tuple[int, str], list[Run]] = {}
    for run in runs:
        by_metric: dict[str, list[tuple[int, int, str]]] = {}
        for number, row in enumerate(rows):
            for method in row.values:
                if _fits(run, row, method):
                    left = len(_unexplained(run, row, method))
                    by_metric.setdefault(row.metric, []).append((left, number, method))
        for fitting in by_metric.values():
            least = min(left for left, _, _ in fitting)
            for left, number, method in fitting:
                if left == least:
                    found.setdefault((number, method), []).append(run)
    return found


def _fits(run: Run, row: Published, method: str) -> bool:
    """Whether the run's config has the method and the overrides of the row.

    The value of ``rounds`` may differ; the table then names the difference.
    """
    wanted = _without_rounds([*method.split(), *row.overrides])
    return all(_has(run, each) for each in wanted)


def _has(run: Run, override: str) -> bool:
    text = override.partition("=")[2]
    if override.startswith("algorithm="):
        return text in _readings(run)
    if override.startswith("+measure="):
        return any(key.startswith(f"measure.{text}.") for key in run.values)
    have = run.values.get(override_key(override), _ABSENT)
    return have is not _ABSENT and (str(have) == text or have == _value(text))


def _unexplained(run: Run, row: Published, method: str) -> list[str]:
    """The run's overrides that can change results and that neither row nor method sets."""
    own = {"experiment", "protocol"} | {override_key(each) for each in method.split()}
    explained = {_parsed(each) for each in row.overrides}
    left = [each for each in run.overrides if changes_results(override_key(each))]
    left = [each for each in left if override_key(each) not in own]
    if reading := _reading(run, [*method.split(), *row.overrides]):
        left.append(reading)
    return [each for each in left if _parsed(each) not in explained]


def _readings(run: Run) -> tuple[str, str]:
    """The run's algorithm, with and without the suffix ``_paper`` or ``_released``."""
    name = str(run.values.get("algorithm"))
    return name, name.removesuffix("_paper").removesuffix("_released")


def _reading(run: Run, wanted: Sequence[str]) -> str:
    """``algorithm=<name>`` if the run's algorithm is a variant of the wanted one, otherwise empty.

    Variants have the suffix ``_paper`` or ``_released``.
    """
    name, method = _readings(run)
    return f"algorithm={name}" if name != method and f"algorithm={method}" in wanted else ""


def _parsed(override: str) -> tuple[str, str]:
    """Key and parsed value of an override: ``0.30`` and ``0.3`` are parsed to equal values."""
    return override_key(override), repr(_value(override.partition("=")[2]))


@cache
def _value(text: str) -> Any:
    if {*"&*"} & {*text}:  # may be aliases of YAML, which could expand to a huge value
        return text
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        return text
