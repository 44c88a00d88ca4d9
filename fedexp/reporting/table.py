"""Tables of text cells with marks; each format shows the marks in its own way."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pandas as pd

from fedexp.reporting import statistics
from fedexp.reporting.families import stars
from fedexp.reporting.interval import Interval
from fedexp.reporting.marks import LEGEND, Rank
from fedexp.reporting.statistics import COSTS_TO, statistic_shown

Mark = Rank | Literal["alarm"]
STARS = (
    "*: the 95 % interval excludes 0; **: also after the correction of Benjamini and Hochberg for "
    "all comparisons of the column; ***: also after Holm's correction."
)
_BEST = "best chooses its round by the test data: no star, whatever the interval."
AT_BOUND = (
    "(1 of 3) after a number: 1 of 3 seeds did not reach the target and counts with its whole run; "
    "a mean with >= is a lower bound."
)
Values = Mapping[str, Any]
"""A row of the frame that ``marks.with_marks`` returns: column -> value."""


@dataclass(frozen=True)
class Table:
    """Text cells in rows.

    Attributes:
        title: the heading of the table.
        columns: the headings of the columns.
        rows: the cells of each row, one for each column.
        marks: (row, column) -> best (bold), second (underlined), or alarm (red).
        notes: sentences below the table.
        keys: the number of columns at the left that name the row.
        optional: the columns to leave out first, in this order, if the table is too wide.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keys: int = 1
    optional: tuple[str, ...] = ()


def results_table(
    results: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str], statistic: str = "final"
) -> Table:
    """The table of mean ± standard deviation over seeds: a row for each label, columns of metrics.

    The column of a cost of reaching a target shows ``final``, the cost's only statistic.

    Args:
        results: the frame that ``marks.with_marks`` returns.
        keys: the label's keys.
        metrics: the columns.
        statistic: the statistic over rounds to show.
    """
    cells = _cells(results, keys, metrics, statistic)
    seeds = {tuple(row[k] for k in keys): row["seeds"] for row in results.to_dict("records")}
    rows = [
        [*map(str, label), str(n), *(_text(cells.get((label, m)), m) for m in metrics)]
        for label, n in seeds.items()
    ]
    marks: dict[tuple[int, int], Mark] = {
        (row, column): mark
        for row, label in enumerate(seeds)
        for column, metric in enumerate(metrics, start=len(keys) + 1)
        if (mark := cells.get((label, metric), {}).get("mark"))
    }
    notes = [f"Values: {statistic}; mean ± standard deviation over seeds."]
    notes += [LEGEND] if marks else []
    few = {(row["n"], row["seeds"]) for row in cells.values() if row["n"] < row["seeds"]}
    notes += [f"{n} of {own}: seeds with values, too few for a mean." for n, own in sorted(few)]
    notes += [AT_BOUND] if any(row["at_bound"] for row in cells.values()) else []
    if {1, 2} & {*seeds.values()}:
        notes.append("n = 1 or 2: fewer than three seeds; nothing there is marked as best.")
    if 0 in seeds.values():
        notes.append("n = 0: no run is finished.")
    for metric in metrics:
        known = results.loc[results["metric"] == metric, "statistic"].unique()
        if len(known) and (wanted := statistic_shown(metric, statistic)) not in known:
            notes.append(f"{metric}: has no {wanted}, only {' and '.join(known)}.")
    return Table("Results", [*keys, "n", *metrics], rows, marks, notes, keys=max(1, len(keys)))


def difference_table(
    frame: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str], statistic: str, title: str
) -> Table:
    """The table of paired differences to the baseline, with 95 % intervals.

    Args:
        frame: the frame of ``statistics.differences``; it has at least one row.
        keys, metrics, statistic: as for ``results_table``; metrics without a row are left out.
        title: the heading of the table.
    """
    shown = [name for name in metrics if name in set(frame["metric"])]
    cells = _cells(frame, keys, shown, statistic)
    rows = []
    for key, own in frame.groupby(list(keys), sort=False):
        label = tuple(map(str, key))
        gains = [_difference(cells.get((label, metric)), metric) for metric in shown]
        rows.append([*label, str(own["seeds"].iloc[0]), *gains])
    notes = ["Mean of the differences of runs with the same seed ± half of its 95 % interval."]
    notes += [STARS] if any(cell.endswith("*") for row in rows for cell in row) else []
    notes += [_BEST] if statistic == "best" else []
    found = cells.values()
    if any(row["at_bound"] and math.isfinite(row["difference"]) for row in found):
        notes.append(AT_BOUND)
    if any(row["seeds"] == 1 for row in found):
        notes.append("n = 1: one pair of runs, so no interval.")
    if any(row["pairs"] == row["seeds"] == 2 for row in found):
        notes.append("n = 2: two pairs of runs, not tested: no star, whatever the interval.")
    few = {(row["pairs"], row["seeds"]) for row in found if row["pairs"] < row["seeds"]}
    notes += [f"{n} of {own}: pairs with values, too few for a mean." for n, own in sorted(few)]
    return Table(title, [*keys, "n", *shown], rows, notes=notes, keys=len(keys))


def order_metrics(metrics: Sequence[str]) -> list[str]:
    """Order metrics: accuracies, then others, then costs of targets (``COSTS_TO``).

    In each of the three groups, metrics ``global/*`` come first.
    """

    def place(metric: str) -> tuple[bool, bool, bool]:
        cost = metric.startswith(COSTS_TO)
        return cost, "accuracy" not in metric, not metric.startswith("global/")

    return sorted(metrics, key=place)


def number(value: float, metric: str) -> str:
    """A value as text: with four decimals, or ``diverged`` if it is not finite.

    Costs of a target have their own units: 12 (``rounds_to``), 1.2 MB (``bytes_to``) and 3.4 s
    (``seconds_to``).
    """
    if not math.isfinite(value):
        return "diverged"
    if metric.startswith((statistics.ROUNDS_TO, statistics.SMOOTHED_ROUNDS_TO)):
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    if metric.startswith(statistics.BYTES_TO):
        return f"{value / 1e6:.4g} MB"
    if metric.startswith(statistics.SECONDS_TO):
        return f"{value:.4g} s"
    return f"{value:.4f}"


def signed(value: float, metric: str) -> str:
    """A difference with its sign; empty for NaN."""
    if math.isnan(value):
        return ""
    return ("-" if value < 0 else "+") + number(abs(value), metric)


def with_interval(difference: Interval, metric: str, stars: str = "") -> str:
    """A difference ± half the width of its interval, the seeds at their bound, and stars."""
    text = signed(difference.mean, metric)
    if difference.n > 1:
        text += f" ± {number(difference.half_width, metric)}"
    if difference.at_bound:
        text += f" ({difference.at_bound} of {difference.n})"
    return f"{text} {stars}" if stars else text


def mean_and_deviation(
    mean: float, deviation: float, metric: str, at_bound: int = 0, n: int = 1
) -> str:
    """A mean as ``0.9123 ± 0.0040``, or as ``>= 150 (1 of 3)`` if 1 of 3 seeds is at its bound."""
    text = number(mean, metric)
    if at_bound:
        return f">= {text} ({at_bound} of {n})"
    return f"{text} ± {number(deviation, metric)}" if math.isfinite(deviation) else text


def _cells(
    over_seeds: pd.DataFrame, keys: Sequence[str], metrics: Sequence[str], statistic: str
) -> dict[tuple[tuple[str, ...], str], Values]:
    """(Values of ``keys``, metric) -> the row of ``over_seeds`` that the table shows."""
    found: dict[tuple[tuple[str, ...], str], Values] = {}
    shown = over_seeds[over_seeds["metric"].isin(metrics)]
    for row in shown.to_dict("records"):
        if row["statistic"] == statistic_shown(row["metric"], statistic):
            found[tuple(row[key] for key in keys), row["metric"]] = {
                str(k): v for k, v in row.items()
            }
    return found


def _text(row: Values | None, metric: str) -> str:
    """A row as ``0.9123 ± 0.0040``, or as ``2 of 3`` if only 2 of 3 seeds have a value."""
    if row is None or row["seeds"] == 0:
        return ""
    if row["n"] < row["seeds"]:
        return f"{row['n']} of {row['seeds']}"
    return mean_and_deviation(row["mean"], row["std"], metric, row["at_bound"], row["n"])


def _difference(row: Values | None, metric: str) -> str:
    """A row of ``statistics.differences`` with its interval and stars."""
    if row is None:
        return ""
    if row["pairs"] < row["seeds"]:
        return f"{row['pairs']} of {row['seeds']}"
    if not math.isfinite(row["difference"]):
        return str(row["reason"] or number(row["difference"], metric))
    found = Interval(row["difference"], row["half_width"], row["pairs"], row["at_bound"])
    tested = row["excludes_zero"] and found.is_tested and row["statistic"] != "best"
    return with_interval(found, metric, stars(tested, row["p_bh"], row["p_holm"]))
