"""Metrics over rounds, with bands over seeds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedexp.reporting.labels import Label, short_texts
from fedexp.reporting.statistics import smooth
from fedexp.reporting.style import MOST_LINES, legend_below, line_style, pages, panels, widen

if TYPE_CHECKING:
    from fedexp.reporting.runs import Run

_MARKS = 8
"""About as many markers a line, so that lines can be told apart without colour."""


def curve_figures(
    configurations: Mapping[Label, Sequence[Run]],
    metric: str,
    smoothed: bool,
    targets: Sequence[float],
) -> Iterator[Figure]:
    """One metric over the rounds: a line for each configuration, the band mean ± deviation.

    Configurations that share all keys but the first, as the methods of one partition, share a
    panel. Ten lines at most are in a panel, twelve panels in a figure.

    Args:
        configurations: label -> its runs, one a seed.
        metric: such as ``global/accuracy``.
        smoothed: whether to smooth each run's curve.
        targets: accuracies to which rounds are counted; thin lines.
    """
    drawn = {
        label: curve
        for label, runs in configurations.items()
        if len(curve := mean_curve(runs, metric, smoothed)) > 1
    }
    for page in pages(_panels(list(drawn)), 12) if drawn else ():
        figure, axes = panels(len(page))
        for (title, lines), cells in zip(page, axes, strict=True):
            for number, (name, label) in enumerate(lines):
                _draw(cells, drawn[label], name, number)
            for target in targets if metric == "global/accuracy" else ():
                cells.axhline(target, color="gray", linewidth=0.8, linestyle=(0, (1, 3)))
            cells.set_title(title, fontsize=9)
            cells.set(xlabel="round", ylabel=metric)
            cells.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axes)
        yield figure


def metric_panels(
    configurations: Mapping[Label, Sequence[Run]], metrics: Sequence[str]
) -> Iterator[Figure]:
    """Several metrics over the rounds, a panel each, for up to ten configurations a figure.

    Metrics that were measured in one round only are left out.
    """
    names = dict(zip(configurations, short_texts(list(configurations)), strict=True))
    curves = {
        metric: {
            label: curve
            for label, runs in configurations.items()
            if len(curve := mean_curve(runs, metric)) > 1
        }
        for metric in metrics
    }
    curves = {metric: lines for metric, lines in curves.items() if lines}
    for page in pages(configurations, MOST_LINES) if curves else ():
        figure, axes = panels(len(curves))
        for (metric, lines), cells in zip(curves.items(), axes, strict=True):
            for number, label in enumerate(page):
                if label in lines:
                    _draw(cells, lines[label], names[label], number)
            widen(cells)
            cells.set(xlabel="round", ylabel=metric.partition("/")[2].replace("_", " "))
            cells.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend_below(figure, axes)
        yield figure


def mean_curve(runs: Sequence[Run], metric: str, smoothed: bool = False) -> pd.DataFrame:
    """``mean`` and ``std`` (n - 1; NaN for one seed) of a metric, the index ``round``.

    Only rounds in which every run measured it: the mean of other runs would be another one's.
    """
    curves = [_curve(run, metric) for run in runs]
    if smoothed:
        curves = [pd.Series(smooth(each.to_numpy()), index=each.index) for each in curves]
    frame = pd.concat(curves, axis=1, join="inner")
    return pd.DataFrame({"mean": frame.mean(axis=1), "std": frame.std(axis=1)})


def _curve(run: Run, metric: str) -> pd.Series[float]:
    measured = {n: row[metric] for n, row in enumerate(run.history, start=1) if metric in row}
    finite = {n: value for n, value in measured.items() if math.isfinite(value)}
    return pd.Series(finite, dtype=float).rename_axis("round")


def _draw(axes: Axes, curve: pd.DataFrame, name: str, number: int) -> None:
    style = line_style(number)
    every = max(1, len(curve) // _MARKS)
    x, mean, std = (np.asarray(each) for each in (curve.index, curve["mean"], curve["std"]))
    axes.plot(x, mean, label=name, markevery=(number % every, every), **style)
    if np.isfinite(std).any():
        axes.fill_between(x, mean - std, mean + std, color=style["color"], alpha=0.18, linewidth=0)


def _panels(labels: Sequence[Label]) -> list[tuple[str, list[tuple[str, Label]]]]:
    """Title and (name, label) of each panel's lines."""
    if len(labels) <= MOST_LINES:
        return [("", list(zip(short_texts(labels), labels, strict=True)))]
    groups: dict[Label, list[Label]] = {}
    for label in labels:
        groups.setdefault(label[1:], []).append(label)
    if max(map(len, groups.values())) == 1:  # a single key
        groups = {(): list(labels)}
    found = []
    for rest, members in groups.items():
        title = "" if not rest else short_texts([rest])[0]
        for page in pages(members, MOST_LINES):
            names = short_texts([label[:1] if rest else label for label in page])
            found.append((title, list(zip(names, page, strict=True))))
    return found
