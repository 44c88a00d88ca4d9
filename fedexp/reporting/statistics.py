"""Statistics of one run, over seeds, and of the differences between runs and their baselines."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fedexp.reporting.baseline import Baselines
from fedexp.reporting.families import corrected
from fedexp.reporting.interval import AtLeast, Interval, paired_difference, smallest_gain
from fedexp.reporting.labels import Label
from fedexp.reporting.runs import Run
from fedexp.tracking.statistics import first_round_with, headline_statistics, rounds_to_best_of

STATISTICS = ("final", "best", "mean_last5", "at_best_validation")
"""The statistics by which runs are compared, unlike ``standard_error``."""
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
_RECENT = 5
"""Number of the measurements in ``mean_of_last``."""
_DIFFERENCE = (
    *("difference", "half_width", "pairs", "seeds", "at_bound", "excludes_zero"),
    *("p_value", "smallest_gain", "reason"),
)
"""The columns of ``differences`` that belong to one row alone."""


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


def run_statistics(run: Run, measures: Measures) -> dict[str, dict[str, float]]:
    """Statistics of a run's headlines and further metrics, and the costs of reaching the targets.

    Returns:
        Metric -> statistic -> value. A metric of ``measures.metrics`` that is no headline has only
        ``final`` and ``mean_last5``. The costs of reaching a target are ``rounds_to/<target>``,
        ``rounds_to_smoothed/<target>``, ``bytes_to/<target>`` (up and down) and
        ``seconds_to/<target>`` (without evaluation). A cost has only the statistic ``final``. It is
        ``AtLeast`` the cost of the whole run if the target was not reached.
    """
    found = headline_statistics(run.history, run.headlines)
    for metric in measures.metrics:
        if metric not in found and (values := _measured(run.history, metric)):
            found[metric] = {"final": values[-1]}
            if recent := _measured(run.history[-5:], metric):
                found[metric]["mean_last5"] = sum(recent) / len(recent)
    for target in dict.fromkeys(map(float, [*measures.targets, *run.targets])):
        found |= cost_to(run.history, target)
        if measures.smooth:
            found |= smoothed_rounds_to(run.history, target)
    return found


def cost_to(history: Sequence[Mapping[str, float]], target: float) -> dict[str, dict[str, float]]:
    """Rounds, bytes and seconds until ``global/accuracy`` first reaches ``target``.

    Returns cost -> ``final`` -> value, without costs that were not measured. If the target is not
    reached, the values are ``AtLeast`` the costs of the whole run. Empty if ``global/accuracy`` was
    never measured.
    """
    if not _measured(history, "global/accuracy"):
        return {}
    first = first_round_with(history, target)
    until = history[:first]
    costs: dict[str, float] = {f"{ROUNDS_TO}{target:g}": len(until)}
    for prefix, names in ((BYTES_TO, BYTES), (SECONDS_TO, SECONDS)):
        # A cost that was not measured is absent, not 0.
        if any(name in until[0] for name in names):
            costs[f"{prefix}{target:g}"] = total(until, names)
    kind = AtLeast if first is None else float
    return {name: {"final": kind(value)} for name, value in costs.items()}


def total(history: Iterable[Mapping[str, float]], metrics: Iterable[str]) -> float:
    """The sum of these metrics over all rounds; a metric that a round lacks counts as 0."""
    return sum(row.get(metric, 0.0) for row in history for metric in metrics)


def smoothed_rounds_to(
    history: Sequence[Mapping[str, float]], target: float
) -> dict[str, dict[str, float]]:
    """Number of rounds until the smoothed ``global/accuracy`` reaches ``target``; see ``smooth``.

    The last half window does not count: there the filter extrapolates, so the numbers would change
    with further rounds. ``AtLeast`` all rounds if the smoothed accuracy never reaches the target.
    Empty if fewer rounds were measured than the filter's window needs.
    """
    if not fills_window(history, "global/accuracy"):
        return {}
    measured = [n for n, row in enumerate(history, start=1) if "global/accuracy" in row]
    curve = smooth(np.array([history[n - 1]["global/accuracy"] for n in measured]))
    inside = zip(measured, curve[: -(SMOOTHING[0] // 2)], strict=False)
    first = next((n for n, value in inside if value >= target), None)
    return {f"{SMOOTHED_ROUNDS_TO}{target:g}": {"final": _rounds(first, history)}}


def fills_window(history: Sequence[Mapping[str, float]], metric: str) -> bool:
    """Whether the metric was measured often enough to be smoothed."""
    return len(_measured(history, metric)) >= SMOOTHING[0]


def smooth(values: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    """Smooth ``values`` [rounds] by a Savitzky-Golay filter; return short curves unchanged."""
    from scipy.signal import savgol_filter  # slow to import

    if len(values) < SMOOTHING[0]:
        return values
    smoothed: NDArray[np.floating[Any]] = savgol_filter(values, *SMOOTHING)
    return smoothed


def per_run(
    runs: Sequence[Run], labels: Sequence[Label], measures: Measures, baselines: Baselines
) -> pd.DataFrame:
    """A data frame with a row for each run, metric and statistic.

    A label with a baseline has one more metric, ``rounds_to/best_of_baseline`` (``final``): the
    rounds until a run reaches the best ``global/accuracy`` of the baseline's run with the same
    seed. The metric is absent if the baseline has no finished run with this seed.

    Columns: the label's keys, then ``run`` (its index in ``runs``), ``seed``, ``rounds_done``,
    ``finished``, ``metric``, ``statistic``, ``value`` and ``at_bound`` (whether the value is a cost
    of a target that was not reached; see ``AtLeast``).
    """
    rows = []
    known = {
        (label, run.seed): run for run, label in zip(runs, labels, strict=True) if run.finished
    }
    for index, (run, label) in enumerate(zip(runs, labels, strict=True)):
        found = run_statistics(run, measures)
        base = baselines.get(label)
        other = None if base is None else known.get((base, run.seed))
        reachable = _measured(other.history, "global/accuracy") if other else []
        own = _measured(run.history, "global/accuracy")
        if other and own and any(map(math.isfinite, reachable)):
            first = rounds_to_best_of(other.history, run.history)
            found[ROUNDS_TO_BASELINE] = {"final": _rounds(first, run.history)}
        common = {**dict(label), "run": index, "seed": run.seed}
        common |= {"rounds_done": len(run.history), "finished": run.finished}
        rows += [
            {**common, "metric": metric, "statistic": statistic}
            | {"value": float(value), "at_bound": isinstance(value, AtLeast)}
            for metric, values in found.items()
            for statistic, value in values.items()
        ]
    return pd.DataFrame(rows)


def finished_only(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines of ``per_run`` of the finished runs."""
    return lines if lines.empty else lines[lines["finished"]]


def over_seeds(lines: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Mean and deviation over seeds of ``per_run``: a row for each label, metric and statistic.

    Only finished runs count. ``mean`` and ``std`` (divided by n - 1; NaN for one seed) are taken
    over ``n`` values. ``seeds`` is the number of finished runs with this label. If ``n`` is smaller
    than ``seeds``, some runs did not measure the metric; mean and deviation are then NaN. They are
    also NaN if a run diverged. ``at_bound`` of the ``n`` runs did not reach their target and count
    with the cost of the whole run; the mean is then a lower bound, and the deviation NaN.
    """
    names = [*keys, "metric", "statistic"]
    finished = finished_only(lines)
    found = finished.groupby(names, sort=False, dropna=False).agg(
        mean=("value", lambda values: values.mean(skipna=False)),
        std=("value", lambda values: values.std(skipna=False)),
        n=("value", "size"),
        at_bound=("at_bound", "sum"),
    )
    table = lines[names].drop_duplicates().merge(found.reset_index(), on=names, how="left")
    if keys:
        seeds = finished.groupby(list(keys), sort=False)["run"].nunique().rename("seeds")
        table = table.merge(seeds.reset_index(), on=list(keys), how="left")
    else:
        table["seeds"] = finished["run"].nunique()
    counts = ["n", "at_bound", "seeds"]
    table[counts] = table[counts].fillna(0).astype(int)  # a label without a finished run
    table.loc[table["n"] < table["seeds"], ["mean", "std"]] = math.nan
    table.loc[table["at_bound"] > 0, "std"] = math.nan
    return table


def differences(lines: pd.DataFrame, keys: Sequence[str], baselines: Baselines) -> pd.DataFrame:
    """The paired difference of each label to its baseline, for each metric and statistic.

    Standard errors are not compared.

    Args:
        lines: the frame of ``per_run``.
        keys: the label's keys.
        baselines: label -> label of its baseline.

    Returns:
        A frame with the columns: the keys, ``metric``, ``statistic``, ``difference``,
        ``half_width`` (of the 95 % interval), ``pairs`` (pairs of values), ``seeds`` (seeds with
        finished runs of both labels), ``at_bound`` (pairs in which a run did not reach its target),
        ``excludes_zero`` (whether 0 is outside the interval), ``p_value`` (of the paired t-test),
        ``p_bh`` and ``p_holm`` (corrected for all rows with this metric and statistic; NaN for
        what is not tested, see ``Interval.is_tested``), ``smallest_gain`` (which these seeds show
        with a probability of 80 %), and ``reason`` (in words, why there is no difference of costs
        to a target). Baselines, labels without a baseline, and labels without a
        finished run have no row. The difference is NaN if there are fewer pairs than seeds, because
        some run did not measure the metric, or for the reasons of ``paired_difference``.
    """
    columns = [*keys, "metric", "statistic", *_DIFFERENCE]
    lines = finished_only(lines)
    if lines.empty or not keys:
        return pd.DataFrame(columns=[*columns, "p_bh", "p_holm"])
    seeds = {key: set(group["seed"]) for key, group in lines.groupby(list(keys), sort=False)}
    names = [*keys, "metric", "statistic"]
    compared = lines[lines["statistic"].isin(STATISTICS)]
    values = {key: _by_seed(group) for key, group in compared.groupby(names, sort=False)}
    rows = []
    for label, other in baselines.items():
        key, base = _values(label), _values(other)
        if key == base or not {key, base} <= seeds.keys():
            continue
        shared = len(seeds[key] & seeds[base])
        for measured in (each[len(keys) :] for each in values if each[: len(keys)] == key):
            found = paired_difference(values[*key, *measured], values.get((*base, *measured), {}))
            if found is not None:
                rows.append([*key, *measured, *_difference(found, shared)])
    frame = pd.DataFrame(rows, columns=columns)
    frame["p_bh"] = frame["p_holm"] = math.nan
    for _, family in frame.groupby(["metric", "statistic"]):
        bh, holm = corrected(family["p_value"].where(family["pairs"] > 2).tolist())
        frame.loc[family.index, "p_bh"], frame.loc[family.index, "p_holm"] = bh, holm
    return frame


def _difference(found: Interval, seeds: int) -> tuple[float | str, ...]:
    """The columns ``_DIFFERENCE`` of a row; NaN with fewer pairs than seeds."""
    whole = found if found.n == seeds else Interval(math.nan, math.nan, found.n)
    return (
        *(whole.mean, whole.half_width, found.n, seeds, found.at_bound),
        *(whole.excludes_zero, whole.p_value, smallest_gain(whole), whole.reason),
    )


def mean_of_last(history: Sequence[Mapping[str, float]], metric: str) -> float:
    """The mean over the last five measurements of ``metric``; NaN if it was never measured."""
    values = _measured(history, metric)[-_RECENT:]
    return sum(values) / len(values) if values else math.nan


def statistic_shown(metric: str, statistic: str) -> str:
    """The statistic to show: ``final`` for a cost of reaching a target, else ``statistic``."""
    return "final" if metric.startswith(COSTS_TO) else statistic


def _values(label: Label) -> tuple[str, ...]:
    return tuple(value for _, value in label)


def _measured(history: Iterable[Mapping[str, float]], metric: str) -> list[float]:
    return [row[metric] for row in history if metric in row]


def _rounds(first: int | None, history: Sequence[Mapping[str, float]]) -> float:
    """The number of the first round, or ``AtLeast`` all rounds if there is none."""
    return AtLeast(len(history)) if first is None else float(first)


def _by_seed(lines: pd.DataFrame) -> dict[int, float]:
    """Seed -> value of the lines of ``per_run``."""
    columns = (lines["seed"], lines["value"], lines["at_bound"])
    return {
        seed: AtLeast(value) if at_bound else value
        for seed, value, at_bound in zip(*columns, strict=True)
    }
