"""Marks of the best rows of a table.

The best row is bold, and so is each row whose paired difference to the best row may be zero.
"""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

import pandas as pd

from fedexp.reporting.baseline import Baselines
from fedexp.reporting.interval import paired_difference
from fedexp.reporting.labels import Label
from fedexp.reporting.statistics import COSTS_TO, STATISTICS, finished_only

T = TypeVar("T")
Rank = Literal["best", "second"]

LEGEND = (
    "Bold: the best, and each row that the 95 % interval of paired differences does not tell from "
    "it; underlined: the next."
)


def with_marks(
    results: pd.DataFrame,
    values: pd.DataFrame,
    keys: Sequence[str],
    better: Mapping[str, str],
    baselines: Baselines,
) -> pd.DataFrame:
    """Add the column ``mark`` to the results: ``best``, ``second`` or empty.

    Rows with the same baseline are compared with each other; without baselines, all rows are
    compared. Rows are marked only if every compared row has three or more finished seeds. A mean
    that is a lower bound is not marked, and neither is a standard error.

    Args:
        results: the frame of ``statistics.over_seeds``.
        values: the frame of ``statistics.per_run``.
        keys: the label's keys.
        better: metric or pattern -> ``higher`` or ``lower``; see ``direction``.
        baselines: label -> label of its baseline.
    """
    names = [*keys, "metric", "statistic"]
    by_seed = {
        key: dict(zip(group["seed"], group["value"], strict=True))
        for key, group in finished_only(values).groupby(names, sort=False)
    }
    rows = results.to_dict("records")
    groups: dict[tuple[Label, str, str], list[int]] = {}
    for number, row in enumerate(rows):
        if row["statistic"] not in STATISTICS:
            continue
        label: Label = tuple((key, str(row[key])) for key in keys)
        group = baselines.get(label, label) if baselines else ()
        groups.setdefault((group, row["metric"], row["statistic"]), []).append(number)
    marks: dict[int, Rank] = {}
    for (_, metric, _), members in groups.items():
        if all(rows[n]["seeds"] > 2 for n in members):
            known = [n for n in members if math.isfinite(rows[n]["mean"])]
            known = [n for n in known if not rows[n]["at_bound"]]
            own = {n: by_seed[tuple(rows[n][name] for name in names)] for n in known}
            marks |= rank(own, direction(metric, better))
    return results.assign(mark=[marks.get(n, "") for n in range(len(rows))])


def direction(metric: str, better: Mapping[str, str]) -> str | None:
    """The better direction of a metric, ``higher`` or ``lower``; None if the direction is unknown.

    ``better`` has names and patterns such as ``cost/*``. If the metric's own name is absent, the
    first pattern that fits is used.
    """
    if metric.startswith(COSTS_TO):
        return "lower"
    if metric in better:
        return better[metric]
    return next((way for each, way in better.items() if fnmatchcase(metric, each)), None)


def rank(values: Mapping[T, Mapping[int, float]], better: str | None) -> dict[T, Rank]:
    """Mark the best rows and the second-best rows by their means over seeds.

    ``best`` marks the row with the best mean and each row that may be as good: the 95 % interval of
    its paired difference to the best row includes zero, or there are fewer than three pairs.
    ``second`` marks the next mean. Means count as equal if they agree in four decimals.

    Args:
        values: row -> seed -> finite value.
        better: ``higher`` or ``lower``; None to mark no row.

    Returns:
        Row -> mark, without the unmarked rows; empty if there is only one row.
    """
    if better is None or len(values) < 2:
        return {}
    sign = 1 if better == "lower" else -1
    means = {n: sign * round(sum(own.values()) / len(own), 4) for n, own in values.items()}
    top = min(means, key=means.__getitem__)
    best = {
        n: n == top or means[n] == means[top] or not _told_apart(values[n], values[top])
        for n in values
    }
    next_mean = min((means[n] for n in means if not best[n]), default=None)
    marks: dict[T, Rank] = {n: "second" for n in means if means[n] == next_mean}
    return marks | {n: "best" for n in best if best[n]}


def _told_apart(ours: Mapping[int, float], others: Mapping[int, float]) -> bool:
    found = paired_difference(ours, others)
    return found is not None and found.n > 2 and found.excludes_zero
