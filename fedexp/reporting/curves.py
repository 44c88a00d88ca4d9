"""Metrics over rounds, with bands over seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedexp.drawing.panels import few_ticks, legend_below, name_axes, panels, widen
from fedexp.drawing.style import MOST_LINES, line_style
from fedexp.reporting.drawing import pages
from fedexp.reporting.labels import Label, short_texts
from fedexp.reporting.runs import Run
from fedexp.reporting.statistics import AXES, BYTES, smooth

_MARKS = 8
"""Approximate number of markers on a line; markers tell lines apart without colour."""


@dataclass(frozen=True)
class Curve:
    """A metric over rounds.

    Attributes:
        rounds: [n] the rounds in which every run measured the metric.
        x: [n] the place on the horizontal axis: the round, or the mean over the runs of the time or
            bytes up to the round.
        mean: [n] the mean over the runs.
        std: [n] half the width of the band. It is the sample standard deviation over the runs (NaN
            for one run), or the mean over the runs of another metric that is a deviation.
    """

    rounds: NDArray[Any]
    x: NDArray[Any]
    mean: NDArray[Any]
    std: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rounds)


def curve_figures(
    configurations: Mapping[Label, Sequence[Run]],
    metric: str,
    smoothed: bool,
    targets: Sequence[float],
    deviation: str | None = None,
    against: str = "round",
) -> list[Callable[[], Figure]]:
    """Plot a metric over rounds, simulated time or bytes.

    Each configuration has a line and the band mean ± deviation. Up to ten configurations share one
    panel. If there are more, configurations whose labels differ only in the first key share a
    panel, such as the methods of one partition. A panel has at most ten lines, a figure at most
    twelve panels.

    Args:
        configurations: label -> its runs, one for each seed.
        metric: the metric, such as ``global/accuracy``.
        smoothed: whether to smooth each run's curve.
        targets: accuracies that are drawn as thin lines, if ``metric`` is the global accuracy.
        deviation: the metric that gives half the width of the band, such as a deviation over
            clients; None for the deviation over the runs.
        against: the horizontal axis, a key of ``AXES``.

    Returns:
        Functions that draw one figure each.
    """
    mean = partial(
        mean_curve, metric=metric, smoothed=smoothed, deviation=deviation, against=against
    )
    curves = _curves(configurations, mean)
    lines = targets if metric == "global/accuracy" else ()
    names = ("round" if against == "round" else AXES[against], metric)
    return [
        partial(_draw_curves, page, curves, names, lines)
        for page in pages(_panels(list(curves)) if curves else [], 12)
    ]


def metric_panels(
    configurations: Mapping[Label, Sequence[Run]], metrics: Sequence[str]
) -> list[Callable[[], Figure]]:
    """Plot several metrics over rounds, a panel for each; a figure has up to ten configurations.

    Metrics that were measured in one round only are left out.

    Returns:
        Functions that draw one figure each.
    """
    names = dict(zip(configurations, short_texts(list(configurations)), strict=True))
    every = {each: _curves(configurations, partial(mean_curve, metric=each)) for each in metrics}
    curves = {metric: lines for metric, lines in every.items() if lines}
    return [
        partial(_draw_metrics, {label: names[label] for label in page}, curves)
        for page in pages(configurations if curves else [], MOST_LINES)
    ]


Curves = Mapping[Label, Curve]


def _curves(
    configurations: Mapping[Label, Sequence[Run]], mean: Callable[[Sequence[Run]], Curve]
) -> Curves:
    """The curve of each configuration that measured the metric in at least two rounds."""
    found = {label: mean(runs) for label, runs in configurations.items()}
    return {label: curve for label, curve in found.items() if len(curve) > 1}


def _draw_curves(
    page: Sequence[tuple[str, Sequence[tuple[str, Label]]]],
    curves: Curves,
    names: tuple[str, str],
    targets: Sequence[float],
) -> Figure:
    """Draw a page of panels, see ``_panels``; ``names`` are the names of the two axes."""
    figure, axes = panels(len(page))
    every = dict.fromkeys(name for _, lines in page for name, _ in lines)
    numbers = {name: number for number, name in enumerate(every)}  # one style for each name
    for (title, lines), cells in zip(page, axes, strict=True):
        for name, label in lines:
            _draw(cells, curves[label], name, numbers[name])
        for target in targets:
            cells.axhline(target, color="gray", linewidth=0.8, linestyle=(0, (1, 3)))
        name_axes(cells, *names, title)
        few_ticks(cells)
    legend_below(figure, axes)
    return figure


def _draw_metrics(names: Mapping[Label, str], curves: Mapping[str, Curves]) -> Figure:
    """Draw a panel for each metric with a line for each named configuration."""
    figure, axes = panels(len(curves))
    for (metric, lines), cells in zip(curves.items(), axes, strict=True):
        for number, (label, name) in enumerate(names.items()):
            if label in lines:
                _draw(cells, lines[label], name, number)
        widen(cells)
        name_axes(cells, "round", metric.partition("/")[2].replace("_", " "))
        few_ticks(cells)
    legend_below(figure, axes)
    return figure


def mean_curve(
    runs: Sequence[Run],
    metric: str,
    smoothed: bool = False,
    deviation: str | None = None,
    against: str = "round",
) -> Curve:
    """The mean of a metric over the runs, in the rounds in which every run measured the metric.

    Other rounds are left out: a mean over fewer runs would make the curve jump. For
    ``deviation`` and ``against`` see ``curve_figures``.
    """
    curves = [_curve(run, metric, smoothed) for run in runs]
    places = [_places(run, against) for run in runs]
    rounds = sorted(set.intersection(*map(set, [*curves, *places])))
    values = np.array([[curve[n] for n in rounds] for curve in curves])
    if deviation is not None:
        within = mean_curve(runs, deviation, smoothed)
        width = dict(zip(within.rounds.tolist(), within.mean.tolist(), strict=True))
        std = np.array([width.get(n, math.nan) for n in rounds])
    elif len(runs) > 1:
        std = values.std(axis=0, ddof=1)
    else:
        std = np.full(len(rounds), math.nan)
    x = np.array([[place[n] for n in rounds] for place in places]).mean(axis=0)
    return Curve(np.array(rounds), x, values.mean(axis=0), std)


def _places(run: Run, against: str) -> dict[int, float]:
    """Round -> its place on the horizontal axis; rounds without a place are absent."""
    if against == "seconds":
        return _curve(run, "clock/seconds")
    if against == "round":
        return {n: float(n) for n in range(1, len(run.history) + 1)}
    sent = accumulate(sum(row.get(name, 0.0) for name in BYTES) for row in run.history)
    return dict(enumerate(sent, start=1))


def _curve(run: Run, metric: str, smoothed: bool = False) -> dict[int, float]:
    """Round -> value of the metric, in the rounds with a finite value."""
    measured = {n: row[metric] for n, row in enumerate(run.history, start=1) if metric in row}
    known = {n: value for n, value in measured.items() if math.isfinite(value)}
    values = np.array(list(known.values()))
    return dict(zip(known, smooth(values).tolist(), strict=True)) if smoothed else known


def _draw(axes: Axes, curve: Curve, name: str, number: int) -> None:
    style = line_style(number)
    every = max(1, len(curve) // _MARKS)
    x, mean, std = curve.x, curve.mean, curve.std
    axes.plot(x, mean, label=name, markevery=(number % every, every), **style)
    if np.isfinite(std).any():
        low, high = np.stack([x, mean - std], axis=1), np.stack([x, mean + std], axis=1)
        band = np.concatenate([low, high[::-1]])
        axes.add_collection(PolyCollection([band], color=style["color"], alpha=0.18, lw=0))


def _panels(labels: Sequence[Label]) -> list[tuple[str, list[tuple[str, Label]]]]:
    """Divide the labels into panels: the title of each panel, and (name, label) of its lines."""
    if len(labels) <= MOST_LINES:
        return [("", list(zip(short_texts(labels), labels, strict=True)))]
    groups: dict[Label, list[Label]] = {}
    for label in labels:
        groups.setdefault(label[1:], []).append(label)
    if max(map(len, groups.values())) == 1:  # no labels differ only in the first key
        groups = {(): list(labels)}
    found = []
    for rest, members in groups.items():
        title = "" if not rest else short_texts([rest])[0]
        for page in pages(members, MOST_LINES):
            names = short_texts([label[:1] if rest else label for label in page])
            found.append((title, list(zip(names, page, strict=True))))
    return found
