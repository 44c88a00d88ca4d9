"""Heatmaps of the partition and of the similarity of classes."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from fedexp.drawing.data_figure import Arrays, DataFigure
from fedexp.drawing.style import BAR, FAINT, empty_figure, open_frame
from fedexp.drawing.texts import legible

_ANNOTATED_CELLS = 320
_ANNOTATED_CLASSES = 12


def partition_heatmap(
    counts: Tensor,
    classes: Sequence[str],
    clients: Sequence[int] | None = None,
    population: int | None = None,
) -> Figure:
    """Draw the number of samples of each class at each client, and above it each client's total.

    The colour follows the square root of the count, so that a few samples are still visible
    beside thousands. A class that a client lacks is left blank.

    Args:
        counts: [n, C] samples of each class at each client.
        classes: the names of the C classes.
        clients: [n] the clients' numbers; None for 0 to n-1.
        population: N, if the n clients are an evenly spaced subset of N > n clients. The title then
            says so.
    """
    table = counts.cpu().numpy()
    shown, num_classes = table.shape
    figure = empty_figure(*_size(shown, num_classes))
    sizes, cells = figure.subplots(2, sharex=True, height_ratios=[1, max(3, num_classes / 6)])
    sizes.bar(range(shown), table.sum(axis=1), color=BAR, width=0.85)
    sizes.set_ylabel("samples")
    open_frame(sizes)
    sizes.tick_params(axis="x", length=0)
    held = np.ma.masked_equal(table.T, 0)
    colors = colormaps["YlGnBu"].with_extremes(bad=FAINT)
    scale = PowerNorm(0.5, vmin=0, vmax=max(1, table.max()))
    image = cells.imshow(held, cmap=colors, norm=scale, aspect="auto", interpolation="nearest")
    if table.size <= _ANNOTATED_CELLS:
        _annotate(cells, image, held, "d")
    _label(cells.xaxis, "client", [str(c) for c in (range(shown) if clients is None else clients)])
    _label(cells.yaxis, "class", classes)
    figure.colorbar(image, ax=[sizes, cells], label="samples of a class", aspect=35, pad=0.02)
    of = f"{shown} clients"
    if population is not None and population > shown:
        of = f"{shown:,} of {population:,} clients, evenly spaced"
    figure.suptitle(f"Partition: {table.sum():,} samples, {of}, {num_classes} classes")
    return figure


def similarity_heatmap(
    similarity: Tensor,
    classes: Sequence[str],
    superclasses: Sequence[str] = (),
    title: str = "Similarity of class prototypes",
) -> Figure:
    """Draw the cosine similarity of every pair of classes; 0 is white.

    Args:
        similarity: [C, C] cosine similarity of each pair of classes.
        classes: the names of the C classes.
        superclasses: the super-class of each of the C classes; empty if there are none. Classes of
            one super-class become neighbours in a box, and the axes name the super-classes (FedNH,
            Figure 3).
        title: the title of the figure.
    """
    num_classes, shown = len(similarity), similarity.cpu().numpy()
    side = float(np.clip(0.42 * num_classes, 3.6, 9))
    data: Arrays = {"similarity": shown, "classes": classes, "superclasses": superclasses}
    figure = DataFigure(data, (side + 1.8, side + 1))
    cells = figure.subplots()
    order = sorted(range(num_classes), key=lambda c: superclasses[c]) if superclasses else None
    if order:
        shown = shown[np.ix_(order, order)]
    image = draw_similarity(cells, shown)
    if num_classes <= _ANNOTATED_CLASSES:
        _annotate(cells, image, shown, "z.2f")
    if order:
        _label_groups(cells, [superclasses[c] for c in order])
    else:
        _label(cells.xaxis, "class", classes)
        _label(cells.yaxis, "class", classes)
    if max(map(len, superclasses or classes)) > 2:
        cells.tick_params(axis="x", rotation=90)
    figure.colorbar(image, ax=cells, label="cosine similarity", shrink=0.85)
    cells.set_title(title)
    return figure


def similarity_zoom(
    similarity: Tensor,
    classes: Sequence[str],
    superclasses: Sequence[str],
    pairs: Sequence[tuple[str, str]],
    title: str = "Similarity of class prototypes",
) -> Figure:
    """Draw the similarities between two super-classes, a panel for each pair (FedNH, Figure 7).

    Args:
        similarity: [C, C] cosine similarity of each pair of classes.
        classes: the names of the C classes.
        superclasses: the super-class of each of the C classes.
        pairs: (super-class of the rows, super-class of the columns) of each panel.
        title: the title of the figure.
    """
    members = [[_members(superclasses, each) for each in pair] for pair in pairs]
    width = 0.6 * sum(len(x) for _, x in members) + 1.7 * len(pairs) + 0.8
    height = 0.5 * max(len(y) for y, _ in members) + 2.6
    figure = empty_figure(width, height)
    panels = figure.subplots(1, len(pairs), squeeze=False)[0]
    shown = similarity.cpu().numpy()
    for cells, (rows, columns), (y, x) in zip(panels, pairs, members, strict=True):
        block = shown[np.ix_(y, x)]
        image = draw_similarity(cells, block)
        _annotate(cells, image, block, "z.2f")
        _label(cells.xaxis, columns, [classes[c] for c in x])
        _label(cells.yaxis, rows, [classes[c] for c in y])
        cells.tick_params(axis="x", rotation=90)
    figure.colorbar(image, ax=panels, label="cosine similarity", shrink=0.85)
    figure.suptitle(title)
    return figure


def draw_similarity(cells: Axes, similarity: NDArray[np.float64]) -> AxesImage:
    """Draw a matrix of cosines [rows, columns] into the axes ``cells``; 0 is white."""
    return cells.imshow(similarity, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")


def _members(superclasses: Sequence[str], name: str) -> list[int]:
    return [c for c, group in enumerate(superclasses) if group == name]


def _size(columns: int, rows: int) -> tuple[float, float]:
    """Width and height in inches of a grid of cells; more cells need more, up to a bound."""
    return float(np.clip(0.42 * columns + 2, 6, 15)), float(np.clip(0.3 * rows + 2, 4, 13))


def _label(axis: Axis, name: str, labels: Sequence[str]) -> None:
    """Name the axis and at most 50 of its cells: every cell, every 5th, every 10th and so on."""
    step = next(step for step in (1, 5, 10, 20, 50, len(labels)) if len(labels) <= 50 * step)
    axis.set_ticks(range(0, len(labels), step), list(map(legible, labels[::step])), fontsize=8)
    axis.set_label_text(legible(name))


def _label_groups(cells: Axes, names: Sequence[str]) -> None:
    """Draw a box around each group of equal adjacent names, with one name for the group."""
    starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    for start in starts[1:]:
        cells.axhline(start - 0.5, color="gray", linewidth=0.3)
        cells.axvline(start - 0.5, color="gray", linewidth=0.3)
    bounds = list(pairwise([*starts, len(names)]))
    for start, end in bounds:
        corner, side = (start - 0.5, start - 0.5), end - start
        cells.add_patch(Rectangle(corner, side, side, fill=False, linewidth=1.4))
    centres = [(start + end - 1) / 2 for start, end in bounds]
    for axis in (cells.xaxis, cells.yaxis):
        axis.set_ticks(centres, [legible(names[start]) for start in starts], fontsize=7)
        axis.set_label_text("super-class")


def _annotate(cells: Axes, image: AxesImage, values: NDArray[np.generic], form: str) -> None:
    """Write each unmasked value into its cell; the text is white where the cell is dark."""
    brightness = image.to_rgba(values)[..., :3] @ [0.299, 0.587, 0.114]
    for row, column in np.argwhere(~np.ma.getmaskarray(values)):
        color = "white" if brightness[row, column] < 0.5 else "black"
        text = format(values[row, column], form)
        style: dict[str, Any] = {"color": color, "fontsize": 7, "ha": "center", "va": "center"}
        cells.text(column, row, text, in_layout=False, **style)  # within its cell: no margin
