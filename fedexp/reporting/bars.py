"""Bar charts: one bar for each configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.drawing.panels import LONGEST_TEXT, add_axes, name_axes, text_width
from fedexp.drawing.style import COLORS, PlainFigure
from fedexp.drawing.texts import legible
from fedexp.reporting.pages import pages

_MOST_BARS = 30


def bar_figures(
    rows: pd.DataFrame, names: Sequence[str], metric: str
) -> list[Callable[[], Figure]]:
    """Bars of the mean over seeds of each configuration, with the standard deviation.

    Args:
        rows: the rows of ``statistics.over_seeds`` with one metric and statistic.
        names: a name for each row.
        metric: the name of the axis.

    Returns:
        A function for each figure, which draws it; a figure has at most thirty bars.
    """
    table = list(zip(names, rows["mean"], rows["std"], strict=True))
    table = [row for row in table if math.isfinite(row[1])]
    return [partial(_draw_bars, page, metric) for page in pages(table, _MOST_BARS)]


def _draw_bars(rows: Sequence[tuple[str, float, float]], metric: str) -> Figure:
    """Draw a bar for each (name, mean, deviation)."""
    figure, axes = bar_axes([row[0] for row in rows], 0.3)
    means, spreads = [row[1] for row in rows], [or_zero(row[2]) for row in rows]
    axes.barh(range(len(rows)), means, xerr=error_bars(spreads), color=COLORS[0], height=0.7)
    name_axes(axes, metric)
    return figure


def bar_axes(names: Sequence[str], height: float) -> tuple[Figure, Axes]:
    """Axes with room for a bar of ``height`` inches right of each name."""
    names = [legible(name, LONGEST_TEXT) for name in names]
    left, width, up = text_width(names, 9) + 0.25, 4.6, height * len(names) + 0.3
    figure = PlainFigure(figsize=(left + width + 0.2, up + 0.65))
    axes = add_axes(figure, left, 0.55, width, up)
    axes.grid(visible=False, axis="y")
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    return figure, axes


def error_bars(spreads: list[float]) -> list[float] | None:
    """The lengths of the error bars; None if all are 0."""
    return spreads if any(spreads) else None


def or_zero(value: float | None) -> float:
    """The value; 0 if it is None or not finite."""
    return value if value is not None and math.isfinite(value) else 0.0
