"""Pictures of a contest: gains of the methods in each cell, and ranks by search budget."""

from collections.abc import Mapping, Sequence
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.figure import Figure

from fedexp.drawing.panels import add_axes, name_axes
from fedexp.drawing.style import FAINT, PlainFigure, empty_figure, line_style
from fedexp.reporting.interval import Interval
from fedexp.reporting.leaderboard.standings import by_mean_rank

_STRONGEST = 0.2
"""Gain with the strongest colour; larger gains have the same colour."""

_LONGEST = 36
"""Most letters in a line of a method's name; a longer name, as of a control, has several lines."""

_COLOURED = 10
"""Number of methods in colour in ``ranks_by_budget``; other methods are grey."""


def gains_map(frame: pd.DataFrame, cells: Sequence[str], metric: str) -> Figure:
    """Draw the gain of every method over the baseline in every cell.

    The signs in a cell are the signs of ``standings``.

    Args:
        frame: the standings.
        cells: the cells, which are the columns from left to right.
        metric: the name of the accuracy, for the title.
    """
    compared = frame[frame["gain"].notna()]
    order = compared.assign(gain=compared["gain"].map(_mean)).groupby("method")["gain"].mean()
    methods = list(order.sort_values(ascending=False).index)
    rows = compared.to_dict("records")
    gains = {(row["cell"], row["method"]): (row["gain"], row["signs"]) for row in rows}
    table = np.array([[_mean(gains.get((c, m), (None,))[0]) for c in cells] for m in methods])
    names = [fill(method, _LONGEST) for method in methods]
    letters = max((len(line) for name in names for line in name.split("\n")), default=0)
    # In inches: a column holds a number with its signs, and a letter of a name takes 0.07.
    width = max(5.2, 0.78 * len(cells) + 0.07 * letters + 0.6)
    figure = empty_figure(width, 0.29 * len(methods) + 1.3)
    axes = figure.subplots()
    colors = colormaps["RdBu"].with_extremes(bad=FAINT)
    known, strongest = np.ma.masked_invalid(table), _STRONGEST
    axes.imshow(known, cmap=colors, vmin=-strongest, vmax=strongest, aspect="auto")
    for y, method in enumerate(methods):
        for x, cell in enumerate(cells):
            if (cell, method) in gains:
                gain, signs = gains[cell, method]
                text = f"{_signed(gain.mean)} {signs}".rstrip()
                color = "white" if abs(gain.mean) > 0.7 * _STRONGEST else "black"
                axes.text(x, y, text, ha="center", va="center", fontsize=9, color=color)
    axes.set_xticks(range(len(cells)), _in_lines(cells), fontsize=9)
    axes.set_yticks(range(len(methods)), names, fontsize=9, linespacing=1)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=False)
    is_tested = any(gain.is_tested for gain in compared["gain"])
    legend = " + or - after it: ahead or behind;\n++ after Benjamini-Hochberg, +++ after Holm"
    legend = legend if is_tested else "\nnothing is tested with fewer than three seeds"
    figure.suptitle(f"{metric}, gain over FedAvg;{legend}", fontsize=9)
    return figure


def ranks_by_budget(frames: Mapping[int, pd.DataFrame]) -> Figure:
    """Draw the mean rank of the methods against the number of trials.

    The methods with the best rank in their best budget are in colour.

    Args:
        frames: search budget -> standings.
    """
    ranks = pd.DataFrame({budget: by_mean_rank(frame) for budget, frame in frames.items()})
    best = list(ranks.min(axis=1).sort_values(kind="stable").index[:_COLOURED])
    width = max(6.4, 5.3 + 0.065 * max(map(len, best), default=0))  # for the legend
    figure = PlainFigure(figsize=(width, 4.6))
    axes = add_axes(figure, 0.9, 0.6, 3.6, 3.6)
    places = range(len(ranks.columns))
    for method in ranks.index.difference(best):
        axes.plot(places, ranks.loc[method], color="#cccccc", linewidth=0.8)
    for number, method in enumerate(best):
        axes.plot(places, ranks.loc[method], label=method, **line_style(number))
    axes.invert_yaxis()
    axes.set_xticks(list(places), [str(budget) for budget in ranks.columns])
    name_axes(axes, "trials to choose from", "mean rank (1 is best)")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.02, 1), fontsize=8)
    return figure


def _mean(gain: Interval | None) -> float:
    return float("nan") if gain is None else gain.mean


def _signed(gain: float) -> str:
    """A gain with two decimals; one that is rounded to 0 has no sign."""
    rounded = round(gain, 2)
    return f"{rounded:+.2f}" if rounded else "0.00"


def _in_lines(cells: Sequence[str]) -> list[str]:
    """The cells' names, a word a line: ``digits_long_tail`` becomes ``long`` and ``tail``.

    The first word is left out if all cells have it and have others.
    """
    words = [cell.split("_") for cell in cells]
    is_shared = len({first for first, *_ in words}) == 1 and min(map(len, words)) > 1
    return ["\n".join(each[is_shared:]) for each in words]
