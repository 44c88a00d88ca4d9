"""Statistics of one run, over seeds, and of the difference between a run and its baseline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from fedexp.reporting.baseline import Baselines
from fedexp.reporting.labels import Label
from fedexp.reporting.runs import Run
from fedexp.tracking.statistics import (
    first_round_with,
    headline_statistics,
    rounds_to_best_of,
)

STATISTICS = ("final", "best", "mean_last5", "at_best_validation")
ROUNDS_TO, BYTES_TO, SECONDS_TO = "rounds_to/", "bytes_to/", "seconds_to/"
SMOOTHED_ROUNDS_TO = "rounds_to_smoothed/"
ROUNDS_TO_BASELINE = f"{ROUNDS_TO}best_of_baseline"
COSTS_TO = (ROUNDS_TO, SMOOTHED_ROUNDS_TO, BYTES_TO, SECONDS_TO)
BYTES = ("cost/download_bytes", "cost/upload_bytes")
SECONDS = ("time/select_s", "time/probe_s", "time/train_s", "time/server_s")
"""The metrics whose sum is the time of a round without evaluation."""
AXES = {"round": "rounds", "seconds": "simulated seconds", "bytes": "bytes sent"}
"""Name of a horizontal axis -> its description."""
SMOOTHING = (13, 3)
"""Window and order of the Savitzky-Golay filter (HiCS-FL, Section 5)."""
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences over seeds, and its confidence interval.

    Attributes:
        mean: the mean difference.
        half_width: half the width of the interval; NaN for one pair.
        n: the number of pairs.
    """

    mean: float
    half_width: float
    n: int

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 is outside the interval; False for one pair."""
        return self.n > 1 and abs(self.mean) > self.half_width


@dataclass(frozen=True)
class Measures:
    """What a report shows in addition to the headline metrics, and how it draws curves.

    Attributes:
        targets: target global accuracies, in addition to ``measure.global.targets``.
        metrics: names of other metrics, such as ``geometry/classifier_angle``.
        smooth: whether to smooth the drawn curves, and to count rounds to targets on the smoothed
            curve, too.
        against: the horizontal axis of the curves, a key of ``AXES``.
    """

    targets: tuple[float, ...] = ()
    metrics: tuple[str, ...] = ()
    smooth: bool = False
    against: str = "round"


def run_statistics(run: Run, measures: Measures | None = None) -> dict[str, dict[str, float]]:
    """Statistics of a run's headlines and further metrics, and the costs of reaching the targets.

    Returns:
        Metric -> statistic -> value. A metric of ``measures.metrics`` that is no headline has only
        ``final`` and ``mean_last5``. The costs of reaching a target are ``rounds_to/<target>``,
        ``rounds_to_smoothed/<target>``, ``bytes_to/<target>`` (up and down) and
        ``seconds_to/<target>`` (without evaluation). A cost has only the statistic ``final``. It is
        absent if the target was not reached.
    """
    asked = measures or Measures()
    found = headline_statistics(run.history, run.headlines)
    for metric in asked.metrics:
        if metric not in found and (values := _measured(run.history, metric)):
            found[metric] = {"final": values[-1]}
            if recent := _measured(run.history[-5:], metric):
                found[metric]["mean_last5"] = sum(recent) / len(recent)
    for target in dict.fromkeys(map(float, [*asked.targets, *run.targets])):
        found |= cost_to(run.history, target)
        if asked.smooth:
            found |= smoothed_rounds_to(run.history, target)
    return found


def targets_of(runs: Iterable[Run], measures: Measures) -> list[float]:
    """The targets of the runs' configs and of ``measures``, ascending."""
    own = (target for run in runs for target in run.targets)
    return sorted({float(target) for target in (*measures.targets, *own)})


def cost_to(history: Sequence[Mapping[str, float]], target: float) -> dict[str, dict[str, float]]:
    """Rounds, bytes and seconds until ``global/accuracy`` first reaches ``target``.

    Returns cost -> ``final`` -> value, without costs that were not measured; empty if the target
    is not reached.
    """
    first = first_round_with(history, target)
    if first is None:
        return {}
    until = history[:first]
    costs = {f"{ROUNDS_TO}{target:g}": float(first)}
    for prefix, names in ((BYTES_TO, BYTES), (SECONDS_TO, SECONDS)):
        # A cost that was not measured is absent, not 0.
        if any(name in until[0] for name in names):
            costs[f"{prefix}{target:g}"] = sum(row.get(n, 0.0) for row in until for n in names)
    return {name: {"final": value} for name, value in costs.items()}


def smoothed_rounds_to(
    history: Sequence[Mapping[str, float]], target: float
) -> dict[str, dict[str, float]]:
    """Number of rounds until the smoothed ``global/accuracy`` reaches ``target``; see ``smooth``.

    Empty if the smoothed accuracy never reaches the target, or if fewer rounds were measured than
    the filter's window needs.
    """
    measured = [n for n, row in enumerate(history, start=1) if "global/accuracy" in row]
    if len(measured) < SMOOTHING[0]:
        return {}
    curve = smooth(np.array([history[n - 1]["global/accuracy"] for n in measured]))
    first = next((n for n, value in zip(measured, curve, strict=True) if value >= target), None)
    return {} if first is None else {f"{SMOOTHED_ROUNDS_TO}{target:g}": {"final": float(first)}}


def smooth(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Smooth ``values`` [rounds] by a Savitzky-Golay filter; return short curves unchanged."""
    from scipy.signal import savgol_filter  # slow to import

    if len(values) < SMOOTHING[0]:
        return values
    smoothed: NDArray[np.floating[Any]] = savgol_filter(values, *SMOOTHING)
    return smoothed


def per_run(
    runs: Sequence[Run],
    labels: Sequence[Label],
    measures: Measures | None = None,
    baselines: Baselines | None = None,
) -> pd.DataFrame:
    """A data frame with a row for each run, metric and statistic.

    With ``baselines`` there is one more metric, ``rounds_to/best_of_baseline`` (``final``): the
    rounds until a run reaches the best ``global/accuracy`` of the baseline's run with the same
    seed. The metric is absent if the run does not reach this accuracy or the baseline has no run
    with this seed.

    Columns: the label's keys, then ``run`` (its index in ``runs``), ``seed``, ``rounds_done``,
    ``finished``, ``metric``, ``statistic``, ``value``.
    """
    rows = []
    known = {(label, run.seed): run for run, label in zip(runs, labels, strict=True)}
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        found = run_statistics(run, measures)
        base = baselines.get(label) if baselines else None
        other = None if base is None else known.get((base, run.seed))
        if other and (first := rounds_to_best_of(other.history, run.history)):
            found[ROUNDS_TO_BASELINE] = {"final": float(first)}
        common = {**dict(label), "run": index, "seed": run.seed}
        common |= {"rounds_done": len(run.history), "finished": run.finished}
        rows += [
            {**common, "metric": metric, "statistic": statistic, "value": value}
            for metric, values in found.items()
            for statistic, value in values.items()
        ]
    return pd.DataFrame(rows)


def over_seeds(lines: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean and deviation over seeds of ``per_run``: a row for each label, metric and statistic.

    ``mean`` and ``std`` (divided by n - 1; NaN for one seed) are taken over ``n`` values. ``seeds``
    is the number of runs with this label. If ``n`` is smaller than ``seeds``, some runs did not
    reach a target or did not measure the metric. Mean and deviation are then NaN, since a mean over
    the successful runs would look too good. Mean and deviation are also NaN if a run diverged.
    """
    if lines.empty:
        return pd.DataFrame(columns=[*keys, "metric", "statistic", "mean", "std", "n", "seeds"])
    groups = lines.groupby([*keys, "metric", "statistic"], sort=False, dropna=False)["value"]
    table = groups.agg(
        mean=lambda values: values.mean(skipna=False),
        std=lambda values: values.std(skipna=False),
        n="size",
    ).reset_index()
    if keys:
        seeds = lines.groupby(list(keys), sort=False)["run"].nunique().rename("seeds")
        table = table.merge(seeds.reset_index(), on=list(keys), how="left")
    else:
        table["seeds"] = lines["run"].nunique()
    table.loc[table["n"] < table["seeds"], ["mean", "std"]] = math.nan
    return table


def paired_difference(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Interval | None:
    """The mean of ``ours - baseline`` over the n common seeds; None without common seeds.

    Runs with the same seed share partition, cohorts and batches, so their values form pairs.
    The 95 % interval is mean ± t s / sqrt(n), where s is the standard deviation of the differences
    and t the quantile of Student's t-distribution with n - 1 degrees of freedom.
    """
    seeds = ours.keys() & baseline.keys()
    values = np.array([ours[seed] - baseline[seed] for seed in sorted(seeds)])
    if not len(values):
        return None
    n = len(values)
    if n == 1:
        return Interval(float(values[0]), math.nan, 1)
    quantile = stdtrit(n - 1, (1 + CONFIDENCE) / 2)
    return Interval(float(values.mean()), float(quantile * values.std(ddof=1) / math.sqrt(n)), n)


def differences(lines: pd.DataFrame, keys: Sequence[str], baselines: Baselines) -> pd.DataFrame:
    """The paired difference of each label to its baseline, for each metric and statistic.

    Args:
        lines: the frame of ``per_run``.
        keys: the label's keys.
        baselines: label -> label of its baseline.

    Returns:
        A frame with the columns: the keys, ``metric``, ``statistic``, ``difference``,
        ``half_width`` (of the 95 % interval), ``pairs`` (pairs of values), ``seeds`` (seeds with
        runs of both labels) and ``excludes_zero`` (whether 0 is outside the interval). Baselines,
        and labels without a baseline, have no row. The difference is NaN if there are fewer pairs
        than seeds, because some run did not reach a target: a mean over the remaining pairs would
        mislead.
    """
    columns = [*keys, "metric", "statistic", "difference", "half_width"]
    columns += ["pairs", "seeds", "excludes_zero"]
    if lines.empty or not keys:
        return pd.DataFrame(columns=columns)
    seeds = {key: set(group["seed"]) for key, group in lines.groupby(list(keys), sort=False)}
    values = {
        key: dict(zip(group["seed"], group["value"], strict=True))
        for key, group in lines.groupby([*keys, "metric", "statistic"], sort=False)
    }
    rows = []
    for label, other in baselines.items():
        key, base = _values(label), _values(other)
        if key == base:
            continue
        shared = len(seeds[key] & seeds[base])
        for measured in (each[len(keys) :] for each in values if each[: len(keys)] == key):
            found = paired_difference(values[*key, *measured], values.get((*base, *measured), {}))
            if found is not None:
                partly = found.n < shared
                mean, width = (math.nan, math.nan) if partly else (found.mean, found.half_width)
                excludes = found.excludes_zero and not partly
                rows.append([*key, *measured, mean, width, found.n, shared, excludes])
    return pd.DataFrame(rows, columns=columns)


def statistic_shown(metric: str, statistic: str) -> str:
    """The statistic to show: ``final`` for a cost of reaching a target, else ``statistic``."""
    return "final" if metric.startswith(COSTS_TO) else statistic


def _values(label: Label) -> tuple[str, ...]:
    return tuple(value for _, value in label)


def _measured(history: Iterable[Mapping[str, float]], metric: str) -> list[float]:
    return [row[metric] for row in history if metric in row]
