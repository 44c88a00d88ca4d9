"""How figures look: colours that colour-blind readers can tell apart, also in print."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")
"""Okabe and Ito's palette; brown replaces its yellow, because yellow is faint on paper."""
BAR = "#7a8ca3"
POINT = "#2b5c8a"
REFERENCE = "#9aa5b1"
"""The colour of reference values, such as published values or true values."""
FAINT = "#f3f3f3"
"""The colour of cells without a value."""
MOST_LINES = 10
LAYOUT: dict[str, Any] = {"dpi": 130, "layout": "constrained"}
"""Options of figures whose margins Matplotlib computes."""
_DISTINCT = (
    *("#332288", "#cc6677", "#117733", "#88ccee", "#aa4499", "#ddcc77", "#44aa99", "#882255"),
    *("#999933", "#555555"),
)
"""Colours of up to ten classes; colour-blind readers can tell them apart."""
_DASHES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX*<>"


def line_style(number: int) -> dict[str, Any]:
    """Colour, dashes and marker of line ``number``; the first ``MOST_LINES`` lines all differ."""
    return {
        "color": COLORS[number % len(COLORS)],
        "linestyle": _DASHES[(number + number // len(COLORS)) % len(_DASHES)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 4,
        "linewidth": 1.6,
    }


def class_colors(num_classes: int) -> Sequence[Any]:
    """At least ``num_classes`` colours; for more than ten classes, the colours of a spectrum."""
    if num_classes <= len(_DISTINCT):
        return _DISTINCT
    return list(colormaps["nipy_spectral"](np.linspace(0.03, 0.97, num_classes)))


class PlainFigure(Figure):
    """A figure that shows texts literally: a ``$`` in a class name begins no formula."""

    def draw(self, renderer: RendererBase) -> None:
        """Called by Matplotlib to draw the figure into a file or window."""
        with rc_context({"text.parse_math": False}):  # Matplotlib makes tick labels only now
            for text in self.findobj(Text):
                text.set_parse_math(False)
            super().draw(renderer)


def empty_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches."""
    return PlainFigure(figsize=(width, height), **LAYOUT)


def open_frame(axes: Axes) -> None:
    """Hide the lines above and right of the axes."""
    axes.spines[["top", "right"]].set_visible(False)


def whole_numbers(axis: Axis) -> None:
    """Label the axis with whole numbers only."""
    axis.set_major_locator(MaxNLocator(integer=True))


def legend_above(axes: Axes, **options: Any) -> None:
    """Add a legend above the axes, at the right."""
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), **options)
