"""Numbers of one run, of several seeds, and of the difference to a baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy import stats

from fedexp.reporting.labels import Label, label_runs
from fedexp.reporting.runs import Run
from fedexp.tracking.summary import HEADLINES, headline_statistics

STATISTICS = ("final", "best", "mean_last5", "at_best_validation")
ROUNDS_TO, BYTES_TO, SECONDS_TO = "rounds_to/", "bytes_to/", "seconds_to/"
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean of paired differences over seeds with its confidence interval.

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
        """Whether the sign of the difference is certain at this confidence; False for one pair."""
        return self.n > 1 and abs(self.mean) > self.half_width


def run_statistics(run: Run, targets: Sequence[float] = ()) -> dict[str, dict[str, float]]:
    """Each metric's statistics of one run, and what it cost to reach ``targets``.

    Args:
        run: the run.
        targets: global accuracies, beside those of ``evaluation.targets``.

    Returns:
        Metric -> statistic -> value. ``rounds_to/<target>``, ``bytes_to/<target>`` (both
        directions) and ``seconds_to/<target>`` (training and server, without evaluation) have
        ``final`` only and are absent if the target was not reached.
    """
    found = headline_statistics(run.history)
    wanted = [*targets, *run.config["evaluation"]["targets"]]
    for target in dict.fromkeys(map(float, wanted)):
        found |= cost_to(run.history, target)
    return found


def cost_to(history: Sequence[Mapping[str, float]], target: float) -> dict[str, dict[str, float]]:
    """Rounds, bytes and seconds until ``global/accuracy`` first is at least ``target``."""
    reached = (n for n, row in enumerate(history) if row.get("global/accuracy", -1) >= target)
    first = next(reached, None)
    if first is None:
        return {}
    until = history[: first + 1]
    costs = {f"{ROUNDS_TO}{target:g}": float(first + 1)}
    for prefix, names in (
        (BYTES_TO, ("cost/download_bytes", "cost/upload_bytes")),
        (SECONDS_TO, ("time/select_s", "time/train_s", "time/server_s")),
    ):
        costs[f"{prefix}{target:g}"] = sum(row.get(name, 0.0) for row in until for name in names)
    return {name: {"final": value} for name, value in costs.items()}


def per_run(runs: Sequence[Run], targets: Sequence[float] = ()) -> pd.DataFrame:
    """One line for each run, metric and statistic.

    Columns: the label's keys, then ``run`` (its index), ``seed``, ``rounds``, ``finished``,
    ``metric``, ``statistic``, ``value``.
    """
    rows = []
    for index, (run, label) in enumerate(zip(runs, label_runs(runs), strict=True)):
        common = {**dict(label), "run": index, "seed": run.seed}
        common |= {"rounds": len(run.history), "finished": run.finished}
        rows += [
            {**common, "metric": metric, "statistic": statistic, "value": value}
            for metric, values in run_statistics(run, targets).items()
            for statistic, value in values.items()
        ]
    return pd.DataFrame(rows)


def over_seeds(lines: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean, standard deviation (n - 1; NaN for one seed) and n of ``per_run``'s values.

    A diverged seed (NaN) makes the mean NaN rather than vanish from it. ``seeds`` is the number of
    runs of the row, which is larger than ``n`` where a target was not reached by all.
    """
    if lines.empty:
        return pd.DataFrame(columns=[*keys, "metric", "statistic", "mean", "std", "n", "seeds"])
    by = [*keys, "metric", "statistic"]
    groups = lines.groupby(by, sort=False, dropna=False)["value"]
    table = groups.agg(
        mean=lambda values: values.mean(skipna=False),
        std=lambda values: values.std(skipna=False),
        n="size",
    ).reset_index()
    if not keys:
        return table.assign(seeds=lines["run"].nunique())
    seeds = lines.groupby(list(keys), sort=False)["run"].nunique().rename("seeds")
    return table.merge(seeds.reset_index(), on=list(keys), how="left")


def paired_difference(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Interval | None:
    """The mean of ``ours - baseline`` over the seeds that both have; None if they share none.

    Runs with the same seed share partition, cohorts and batches, so the spread of the differences,
    and not of the values, says how sure their mean is: mean ± t s / sqrt(n) at 95 %.
    """
    seeds = ours.keys() & baseline.keys()
    values = np.array([ours[seed] - baseline[seed] for seed in sorted(seeds)])
    if not len(values):
        return None
    n = len(values)
    if n == 1:
        return Interval(float(values[0]), math.nan, 1)
    quantile = stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)
    return Interval(float(values.mean()), float(quantile * values.std(ddof=1) / math.sqrt(n)), n)


def differences(lines: pd.DataFrame, keys: Sequence[str], baseline: Label) -> pd.DataFrame:
    """Each row's paired difference to its baseline: the row with the same other keys.

    Args:
        lines: of ``per_run``.
        keys: the label's keys.
        baseline: keys and values that make a row a baseline, such as ``algorithm=fedavg``.

    Returns:
        The keys, ``metric``, ``statistic``, ``difference``, ``half_width``, ``pairs``; nothing for
        the baselines themselves and for rows without one.
    """
    columns = [*keys, "metric", "statistic", "difference", "half_width", "pairs"]
    wanted = dict(baseline)
    unknown = wanted.keys() - set(keys)
    if lines.empty or unknown:
        return pd.DataFrame(columns=columns)
    by = [*keys, "metric", "statistic"]
    grouped = {
        key if isinstance(key, tuple) else (key,): dict(
            zip(group["seed"], group["value"], strict=True)
        )
        for key, group in lines.groupby(by, sort=False)
    }
    rows = []
    for key, values in grouped.items():
        names = dict(zip(by, key, strict=True))
        other = tuple((names | wanted).values())
        if other == key or other not in grouped:
            continue
        found = paired_difference(values, grouped[other])
        if found is not None:
            rows.append([*key, found.mean, found.half_width, found.n])
    return pd.DataFrame(rows, columns=columns)


def smaller_is_better(metric: str) -> bool:
    """Whether a smaller value of the metric is better: losses, deviations, costs."""
    return metric.startswith((ROUNDS_TO, BYTES_TO, SECONDS_TO)) or HEADLINES.get(metric) is min
