"""A metric against the one numeric key that was varied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.figure import Figure

from fedexp.reporting.labels import Label, short_texts
from fedexp.reporting.style import MOST_LINES, legend_below, line_style, name_axes, panels

if TYPE_CHECKING:
    from fedexp.reporting.runs import Run


def varied_number(configurations: Mapping[Label, Sequence[Run]]) -> str | None:
    """The key that is the only one with numbers, three of them at least; None if there is none."""
    values: dict[str, set[object]] = {}
    for label, runs in configurations.items():
        for key, _ in label:
            values.setdefault(key, set()).add(runs[0].values.get(key))
    numeric = [key for key, found in values.items() if all(map(_is_number, found))]
    return numeric[0] if len(numeric) == 1 and len(values[numeric[0]]) > 2 else None


def hyperparameter_figure(
    rows: pd.DataFrame,
    keys: Sequence[str],
    key: str,
    metric: str,
    relative: bool = False,
) -> Figure | None:
    """A metric against ``key``, a line for each of the other keys' values; bars are deviations.

    Args:
        rows: of ``statistics.over_seeds``, of one metric and statistic.
        keys: the label's keys.
        key: the numeric one (FedNH, Figure 4; FedSC, Figures 5 and 6; FedGELA, Figure 4).
        metric: the axis' name.
        relative: show the gain over the smallest value of ``key`` instead.

    Returns:
        None if there are more than ten lines, or no line of two points.
    """
    others = [each for each in keys if each != key]
    rows = rows.assign(**{key: rows[key].astype(float)}).dropna(subset=["mean"]).sort_values(key)
    groups = dict(list(rows.groupby(others, sort=False))) if others else {(): rows}
    if not 1 <= len(groups) <= MOST_LINES or max(map(len, groups.values())) < 2:
        return None
    figure, (axes,) = panels(1, width=5.6, height=3.8)
    labels: list[Label] = [tuple(zip(others, map(str, group), strict=True)) for group in groups]
    for number, (name, line) in enumerate(zip(short_texts(labels), groups.values(), strict=True)):
        start = line["mean"].iloc[0] if relative else 0.0
        bars = line["std"].fillna(0) if line["std"].notna().any() and not relative else None
        axes.errorbar(
            line[key], line["mean"] - start, yerr=bars, capsize=3, label=name, **line_style(number)
        )
    if is_logarithmic(sorted(rows[key].unique())):
        axes.set_xscale("log")
    smallest = f"{rows[key].min():g}"
    if relative:
        name_axes(axes, key, f"gain over {key}={smallest}", metric)
    else:
        name_axes(axes, key, metric)
    legend_below(figure, [axes])
    return figure


def is_logarithmic(values: Sequence[float]) -> bool:
    """Whether ascending values are positive and span at least two decades."""
    return values[0] > 0 and values[-1] / values[0] >= 100


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
