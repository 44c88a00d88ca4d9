"""Panels side by side, their names and legends.

Margins are given in inches. Matplotlib's layout engines would draw every text once more to compute
margins; that took half of the report's time.
"""

from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.image import AxesImage
from matplotlib.textpath import text_to_path
from matplotlib.ticker import MaxNLocator

from fedexp.drawing.style import PlainFigure, open_frame
from fedexp.drawing.texts import legible

_MARGINS = (0.88, 0.15, 0.32, 0.55)
"""Inches left of, right of, above and below a panel's axes."""
LONGEST_TEXT = 80
"""Largest number of characters in a title, or in the name of an axis or of a bar."""


def text_width(texts: Iterable[str], size: float) -> float:
    """Width in inches of the longest text in a font of ``size`` points; 0 without any text."""
    font = FontProperties(size=size)
    measure = text_to_path.get_text_width_height_descent
    return max((measure(each, font, ismath=False)[0] for each in texts), default=0.0) / 72


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Add axes with a light grid; position and size are in inches."""
    across, up = figure.get_size_inches()
    axes: Axes = figure.add_axes((left / across, bottom / up, width / across, height / up))
    open_frame(axes)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    return axes


def name_axes(axes: Axes, x: str, y: str = "", title: str = "") -> None:
    """Write the names of the axes and the title at fixed distances from the panel.

    Without fixed distances, Matplotlib would measure all tick labels, in order to place the names
    clear of the tick labels.
    """
    figure: Figure = axes.get_figure()  # type: ignore[assignment]
    place, (across, up) = axes.get_position(), figure.get_size_inches()
    axes.set_xlabel(legible(x, LONGEST_TEXT))
    axes.xaxis.set_label_coords(0.5, -0.3 / (place.height * up))
    axes.set_ylabel(legible(y, LONGEST_TEXT))
    axes.yaxis.set_label_coords(-0.66 / (place.width * across), 0.5)
    axes.set_title(legible(title, LONGEST_TEXT), fontsize=9, y=1.0)


def panels(count: int, width: float = 4.4, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """Make a figure with ``count`` panels, at most three a row; sizes of a panel are in inches."""
    columns = 2 if count == 4 else min(count, 3)
    rows = -(-count // columns)
    width = max(width, 5.6 / columns)
    figure = PlainFigure(figsize=(width * columns, height * rows))
    left, right, top, bottom = _MARGINS
    found = []
    for place in range(count):
        row, column = divmod(place, columns)
        corner = column * width + left, (rows - 1 - row) * height + bottom
        axes = add_axes(figure, *corner, width - left - right, height - top - bottom)
        axes.ticklabel_format(useOffset=False)
        found.append(axes)
    return figure, found


def widen(axes: Axes) -> None:
    """If the y-axis spans less than 0.1 % of its largest value (noise), make it span 1 %."""
    low, high = axes.get_ylim()
    least = max(abs(low), abs(high)) / 1000
    if high - low < least:
        middle = (low + high) / 2
        axes.set_ylim(middle - 5 * least, middle + 5 * least)


def few_ticks(axes: Axes) -> None:
    """Label each axis with about five numbers; on the x-axis (rounds) only whole numbers."""
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))


def legend_below(figure: Figure, axes: list[Axes]) -> None:
    """Add one legend below all panels and enlarge the figure; a single line gets no legend."""
    entries = {
        name: handle
        for each in axes
        for handle, name in zip(*each.get_legend_handles_labels(), strict=True)
    }
    if len(entries) < 2:
        return
    room = figure.get_figwidth() - 0.3
    columns = min(len(entries), max(1, int(room / (text_width(entries, 9) + 0.75))))
    _grow_below(figure, 0.2 + 0.19 * -(-len(entries) // columns))
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "handlelength": 3}
    figure.legend(entries.values(), entries.keys(), loc="lower center", ncols=columns, **style)


def bar_below(figure: Figure, image: AxesImage, name: str) -> None:
    """Add the colour bar of an image below all panels, and enlarge the figure."""
    _grow_below(figure, 0.75)
    across, up = figure.get_size_inches()
    place = ((across - 3) / 2 / across, 0.5 / up, 3 / across, 0.13 / up)
    figure.colorbar(image, cax=figure.add_axes(place), orientation="horizontal", label=name)


def _grow_below(figure: Figure, inches: float) -> None:
    """Enlarge the figure below all axes; the sizes of the axes do not change."""
    width, before = figure.get_size_inches()
    after = before + inches
    for axes in figure.axes:
        box = axes.get_position()
        bottom = (box.y0 * before + inches) / after
        axes.set_position((box.x0, bottom, box.width, box.height * before / after))
    figure.set_size_inches(width, after)
