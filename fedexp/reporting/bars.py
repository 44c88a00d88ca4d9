"""Bars: each configuration's value, and ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.reporting.paper import Verdict
from fedexp.reporting.paper_table import method_names
from fedexp.reporting.style import COLORS, PUBLISHED, legend_below, pages

_MOST_BARS = 30


def bar_figures(rows: pd.DataFrame, names: Sequence[str], metric: str) -> Iterator[Figure]:
    """A bar for each configuration: the mean over seeds and its standard deviation.

    Args:
        rows: of ``statistics.over_seeds``, of one metric and statistic.
        names: of the rows.
        metric: the axis' name.
    """
    table = list(zip(names, rows["mean"], rows["std"], strict=True))
    table = [row for row in table if math.isfinite(row[1])]
    for page in pages(table, _MOST_BARS):
        figure, axes = _axes(len(page), 0.3)
        means, spreads = [row[1] for row in page], [_or_zero(row[2]) for row in page]
        axes.barh(range(len(page)), means, xerr=_errors(spreads), color=COLORS[0], height=0.7)
        _finish(axes, [row[0] for row in page], metric)
        yield figure


def paper_bars(verdicts: Sequence[Verdict]) -> Figure:
    """Ours beside the published values of one table, with standard deviations."""
    cells = [verdict.cell for verdict in verdicts]
    figure, axes = _axes(len(cells), 0.45)
    places = range(len(cells))
    for shift, color, label, values, spreads in (
        (-0.2, PUBLISHED, "paper", [c.published for c in cells], [c.spread for c in cells]),
        (0.2, COLORS[0], "ours", [c.mean for c in cells], [c.std for c in cells]),
    ):
        at = [place + shift for place in places]
        known = [_or_zero(spread) for spread in spreads]
        axes.barh(at, values, xerr=_errors(known), color=color, height=0.38, label=label)
    _finish(axes, method_names(verdicts), f"{cells[0].metric} ({cells[0].statistic})")
    legend_below(figure, [axes])
    return figure


def _axes(bars: int, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, height * bars + 1.4), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _errors(spreads: list[float]) -> list[float] | None:
    return spreads if any(spreads) else None


def _finish(axes: Axes, names: Sequence[str], metric: str) -> None:
    axes.set_yticks(range(len(names)), list(names), fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(metric)


def _or_zero(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0
