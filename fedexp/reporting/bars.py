"""Bar charts: one bar for each configuration, or one point if bars would look alike."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.drawing.panels import LONGEST_TEXT, add_axes, name_axes, text_width
from fedexp.drawing.style import COLORS, PlainFigure
from fedexp.drawing.texts import legible
from fedexp.reporting.drawing import pages

_MOST_BARS = 30
_DROWNS = 0.3
"""Bars become points if their ends differ by less than this share of the end nearest to 0."""


def bar_figures(
    rows: pd.DataFrame, names: Sequence[str], metric: str
) -> list[Callable[[], Figure]]:
    """Bar charts of the mean over seeds: one bar with an error bar for each configuration.

    Args:
        rows: the rows of ``statistics.over_seeds`` with one metric and statistic.
        names: a name for each row.
        metric: the name of the axis.

    Returns:
        Functions that draw one figure each, with at most thirty bars; see ``draw``. Rows without a
        finite mean are left out.
    """
    table = list(zip(names, rows["mean"], rows["std"], strict=True))
    table = [row for row in table if math.isfinite(row[1])]
    return [partial(_draw_bars, page, metric) for page in pages(table, _MOST_BARS)]


def _draw_bars(rows: Sequence[tuple[str, float, float]], metric: str) -> Figure:
    """Draw a bar for each (name, mean, deviation)."""
    figure, axes = bar_axes([row[0] for row in rows], 0.3)
    means, spreads = [row[1] for row in rows], [or_zero(row[2]) for row in rows]
    bars = Bars(list(range(len(rows))), means, spreads, COLORS[0])
    name_axes(axes, metric + draw(axes, [bars], 0.7))
    return figure


@dataclass(frozen=True)
class Bars:
    """A series of bars in one colour.

    Attributes:
        places: the place of each bar on the axis of names.
        values: the value that each bar shows; NaN for no bar.
        spreads: the standard deviations; 0 if unknown.
        color: the colour of all bars.
        label: the name in the legend; empty for no entry.
    """

    places: Sequence[float]
    values: Sequence[float]
    spreads: Sequence[float]
    color: str
    label: str = ""


def draw(axes: Axes, series: Sequence[Bars], height: float) -> str:
    """Draw the series as bars from 0, or as points if bars would look alike.

    Points are drawn for two or more bars whose ends (mean ± deviation) have one sign and differ by
    less than 30 % of the end nearest to 0. The axis of points begins near the smallest end.

    Returns:
        Words to append to the name of the axis. For points, they say that the axis does not begin
        at 0; for bars, they are empty.
    """
    ends = [
        value + sign * spread
        for each in series
        for value, spread in zip(each.values, each.spreads, strict=True)
        for sign in (-1, 1)
        if math.isfinite(value)
    ]
    as_points = len(ends) > 2 and 0 < max(ends) - min(ends) < _DROWNS * min(map(abs, ends))
    for each in series:
        error, label = error_bars(list(each.spreads)), each.label or None
        common: dict[str, Any] = {"xerr": error, "color": each.color, "label": label}
        if as_points:
            axes.errorbar(each.values, each.places, fmt="o", markersize=5, capsize=3, **common)
        else:
            axes.barh(each.places, each.values, height=height, **common)
    if as_points:
        axes.margins(x=0.1)
    return ", axis not from 0" if as_points else ""


def bar_axes(names: Sequence[str], height: float) -> tuple[Figure, Axes]:
    """Make axes for horizontal bars, names on the left; each bar has ``height`` inches of space."""
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
