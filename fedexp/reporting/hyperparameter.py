"""A metric plotted against the one numeric key that was varied."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedexp.drawing.panels import legend_below, name_axes, panels
from fedexp.drawing.style import MOST_LINES, line_style
from fedexp.reporting.labels import Label, hashable, short_texts
from fedexp.reporting.runs import Run


def varied_number(configurations: Mapping[Label, Sequence[Run]]) -> str | None:
    """The only varied key with numeric values, if it has at least three values; otherwise None.

    A key of one method is null for other methods. Such a key, with numbers in some runs and null in
    others, counts only if no varied key has numbers in all runs.
    """
    values: dict[str, set[object]] = {}
    for label, runs in configurations.items():
        for key, _ in label:
            values.setdefault(key, set()).add(hashable(runs[0].values.get(key)))
    numeric = [key for key, found in values.items() if all(map(_is_number, found))]
    numeric = numeric or [
        key for key, found in values.items() if all(map(_is_number, found - {None}))
    ]
    return numeric[0] if len(numeric) == 1 and len(values[numeric[0]] - {None}) > 2 else None


def hyperparameter_figure(
    rows: pd.DataFrame,
    keys: Sequence[str],
    key: str,
    metric: str,
    relative: bool = False,
) -> Figure | None:
    """Draw a metric against ``key``, with a line for each combination of values of other keys.

    Error bars are standard deviations over seeds. Runs in which ``key`` is null become a horizontal
    line with a band (FedNH, Figure 4; FedSC, Figures 5 and 6; FedGELA, Figure 4).

    Args:
        rows: the rows of ``statistics.over_seeds`` with one metric and statistic.
        keys: the label's keys.
        key: the key with numeric values.
        metric: the name of the vertical axis.
        relative: whether to show gains: the metric minus its value at the smallest value of
            ``key``. Runs in which ``key`` is null, and lines without a value there, are left out.

    Returns:
        The figure; None if there are more than ten lines, or no line has two points.
    """
    others = [each for each in keys if each != key]
    numbers = pd.to_numeric(rows[key], errors="coerce")  # NaN for null
    rows = rows.assign(**{key: numbers}).dropna(subset=["mean"]).sort_values(key)
    groups = dict(list(rows.groupby(others, sort=False))) if others else {(): rows}
    points = [int(group[key].notna().sum()) for group in groups.values()]
    if not 1 <= len(groups) <= MOST_LINES or max(points) < 2:
        return None
    figure, (axes,) = panels(1, width=5.6, height=3.8)
    smallest = rows[key].min()
    labels: list[Label] = [tuple(zip(others, map(str, group), strict=True)) for group in groups]
    for number, (name, group) in enumerate(zip(short_texts(labels), groups.values(), strict=True)):
        line, style = group.dropna(subset=[key]), line_style(number)
        if len(line) and (not relative or line[key].iloc[0] == smallest):
            start = line["mean"].iloc[0] if relative else 0.0
            bars = line["std"].fillna(0) if line["std"].notna().any() and not relative else None
            axes.errorbar(
                line[key], line["mean"] - start, yerr=bars, capsize=3, label=name, **style
            )
            name = f"{name} {key}=null"
        if not relative:
            _level(axes, group[group[key].isna()], name, style)
    if is_logarithmic(sorted(rows[key].dropna().unique())):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")  # Matplotlib writes 10^2 as a formula
    if relative:
        name_axes(axes, key, f"gain over {key}={smallest:g}", metric)
    else:
        name_axes(axes, key, metric)
    legend_below(figure, [axes])
    return figure


def _level(axes: Axes, rows: pd.DataFrame, name: str, style: Mapping[str, Any]) -> None:
    """For each row (at most one), draw its mean as a horizontal line with a band ± deviation."""
    for mean, std in zip(rows["mean"], rows["std"].fillna(0), strict=True):
        axes.axhline(mean, label=name, **{**style, "marker": ""})
        axes.axhspan(mean - std, mean + std, color=style["color"], alpha=0.12, linewidth=0)


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether the ascending values are positive and the last is at least 100 times the first."""
    return values[0] > 0 and values[-1] / values[0] >= 100


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
