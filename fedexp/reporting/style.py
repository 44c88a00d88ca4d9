"""How the report's figures look: colours that colour-blind readers can tell apart, in print too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Okabe and Ito's palette, its yellow, which is faint on paper, replaced by brown."""
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX*<>"
MOST_LINES = 10
PUBLISHED = "#9aa5b1"
T = TypeVar("T")


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of the line with this number; ``MOST_LINES`` are distinct."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": _DASHES[(number + number // len(COLORS)) % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def panels(count: int, width: float = 4.4, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels, at most three a row; room for a legend below them."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(5.6, width * columns), height * rows + 0.7), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    for each in axes[:count]:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25, linewidth=0.6)
        each.set_axisbelow(True)
        each.ticklabel_format(useOffset=False)
    return figure, axes[:count]


def widen(axes: Axes) -> None:
    """Show at least a hundredth of the values' size, so that noise does not look like change."""
    low, high = axes.get_ylim()
    least = max(abs(low), abs(high)) / 1000
    if high - low < least:
        middle = (low + high) / 2
        axes.set_ylim(middle - 5 * least, middle + 5 * least)


def legend_below(figure: Figure, axes: list[Axes]) -> None:
    """One legend for all panels, below them; none for a single line."""
    entries = {
        name: handle
        for each in axes
        for handle, name in zip(*each.get_legend_handles_labels(), strict=True)
    }
    if len(entries) < 2:
        return
    per_row = max(1, int(figure.get_figwidth() * 11 / (max(map(len, entries)) + 8)))
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=min(per_row, len(entries)),
        frameon=False,
        fontsize=9,
        handlelength=3,
    )


def pages(items: Iterable[T], size: int) -> list[list[T]]:
    """The items in order, ``size`` at most a page."""
    every = list(items)
    return [every[start : start + size] for start in range(0, len(every), size)]
