"""A table of text cells with marks, which every format draws in its own way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from fedexp.reporting.statistics import (
    BYTES_TO,
    ROUNDS_TO,
    SECONDS_TO,
    smaller_is_better,
)

Mark = Literal["best", "second", "alarm"]


@dataclass(frozen=True)
class Table:
    """Text cells in rows.

    Attributes:
        title: what it shows.
        columns: their headings.
        rows: as many cells each.
        marks: (row, column) -> best (bold), second (underlined), or alarm (red).
        notes: sentences below it.
        keys: how many of the first columns name the row.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    keys: int = 1


def results_table(
    over_seeds: pd.DataFrame,
    keys: Sequence[str],
    statistic: str = "final",
    together: Sequence[str] = (),
) -> Table:
    """Mean ± standard deviation over seeds of every metric, a row for each label.

    Best in bold, second underlined, among rows with the same values of ``together`` (the keys
    beside the method) and only where each has several seeds. Metrics that have no such
    statistic, as rounds to a target, show their final value.

    Args:
        over_seeds: of ``statistics.over_seeds``.
        keys: the label's keys.
        statistic: which one to show.
        together: keys that separate tables within the table.
    """
    shown = over_seeds[over_seeds["statistic"] == statistic]
    missing = set(over_seeds["metric"]) - set(shown["metric"])
    others = over_seeds["metric"].isin(missing) & (over_seeds["statistic"] == "final")
    shown = pd.concat([shown, over_seeds[others]])
    metrics = order_metrics(list(shown["metric"].unique()))
    labels = over_seeds[list(keys)].drop_duplicates() if keys else pd.DataFrame(index=[0])
    cells: dict[tuple[int, str], pd.Series] = {}
    for number, (_, label) in enumerate(labels.iterrows()):
        own = shown
        for key in keys:
            own = own[own[key] == label[key]]
        cells |= {(number, row["metric"]): row for _, row in own.iterrows()}
    seeds = [_seeds(cells, number, metrics) for number in range(len(labels))]
    rows = [
        [*(str(label[key]) for key in keys), str(seeds[number])]
        + [_text(cells.get((number, metric)), metric) for metric in metrics]
        for number, (_, label) in enumerate(labels.iterrows())
    ]
    groups = [tuple(label[key] for key in together) for _, label in labels.iterrows()]
    marks: dict[tuple[int, int], Mark] = {}
    for column, metric in enumerate(metrics, start=len(keys) + 1):
        for group in dict.fromkeys(groups):
            members = [n for n, each in enumerate(groups) if each == group]
            found = {n: cells[n, metric] for n in members if (n, metric) in cells}
            for n, mark in rank(found, metric).items():
                marks[n, column] = mark
    notes = [f"Values: {statistic}; mean ± standard deviation over seeds."]
    if 1 in seeds:
        notes.append("n = 1: one seed; nothing there is marked as best.")
    title = "Results"
    return Table(title, [*keys, "n", *metrics], rows, marks, notes, keys=max(1, len(keys)))


def rank(found: Mapping[int, pd.Series], metric: str) -> dict[int, Mark]:
    """The best and the second of several means; nothing if one of them is of a single seed."""
    finite = {n: row["mean"] for n, row in found.items() if math.isfinite(row["mean"])}
    if len(finite) < 2 or any(row["seeds"] < 2 for row in found.values()):
        return {}
    sign = 1 if smaller_is_better(metric) else -1
    ordered = sorted(set(finite.values()), key=lambda value: sign * value)
    names: dict[float, Mark] = dict(zip(ordered[:2], ("best", "second"), strict=False))
    return {n: names[value] for n, value in finite.items() if value in names}


def order_metrics(metrics: Sequence[str]) -> list[str]:
    """Accuracies first, global before personal; losses; then costs."""

    def place(metric: str) -> tuple[bool, bool, bool]:
        cost = metric.startswith((ROUNDS_TO, BYTES_TO, SECONDS_TO))
        return cost, "accuracy" not in metric, not metric.startswith("global/")

    return sorted(metrics, key=place)


def number(value: float, metric: str) -> str:
    """A value in the metric's own digits: accuracies .1234, rounds 12, bytes 1.2 MB."""
    if not math.isfinite(value):
        return "diverged"
    if metric.startswith(ROUNDS_TO):
        return f"{value:.0f}" if float(value).is_integer() else f"{value:.1f}"
    if metric.startswith(BYTES_TO):
        return f"{value / 1e6:.4g} MB"
    if metric.startswith(SECONDS_TO):
        return f"{value:.4g} s"
    return f"{value:.4f}"


def _text(row: pd.Series | None, metric: str) -> str:
    """``0.9123 ± 0.0040``; ``12 (2 of 3)`` where not every seed reached a target."""
    if row is None:
        return ""
    text = number(row["mean"], metric)
    if math.isfinite(row["std"]):
        text += f" ± {number(row['std'], metric)}"
    return text if row["n"] == row["seeds"] else f"{text} ({row['n']} of {row['seeds']})"


def _seeds(cells: Mapping[tuple[int, str], pd.Series], row: int, metrics: Sequence[str]) -> int:
    return max((int(cells[row, m]["seeds"]) for m in metrics if (row, m) in cells), default=0)
