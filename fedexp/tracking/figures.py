"""Heatmaps of the partition and of class similarity, and the tracker that saves figures as files.

Figures are made without pyplot, so they need no display and no global state.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from numpy.typing import NDArray
from torch import Tensor

from fedexp.core.tabled_figure import TabledFigure
from fedexp.tracking.tracker import Record, RunInfo, Tracker

_FOLDER = "figures"
_DPI = 130
_ANNOTATED_CELLS = 320
_ANNOTATED_CLASSES = 12
_FAINT = "#f3f3f3"
_BAR = "#7a8ca3"


class FigureFiles(Tracker):
    """Saves each figure as ``figures/<name>_<round>.png`` in the run's folder.

    The numbers of a ``TabledFigure`` are saved beside it as ``.csv``.
    """

    def __init__(self, run: RunInfo) -> None:
        self._folder = run.folder / _FOLDER

    def log(self, record: Record) -> None:
        """Save this round's figures."""
        for name, figure in record.figures.items():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{name.replace('/', '_')}_{record.round:04d}.png"
            figure.savefig(path)
            if isinstance(figure, TabledFigure):
                with path.with_suffix(".csv").open("w", newline="", encoding="utf-8") as file:
                    writer = csv.writer(file)
                    writer.writerow(figure.table)
                    writer.writerows(zip(*figure.table.values(), strict=True))


def saved_figures(folder: Path) -> dict[int, dict[str, Path]]:
    """Round -> name -> file, of what ``FigureFiles`` saved in a run's folder."""
    found: dict[int, dict[str, Path]] = defaultdict(dict)
    for path in sorted((folder / _FOLDER).glob("*_*.png")):
        name, _, round = path.stem.rpartition("_")
        found[int(round)][name.replace("_", "/", 1)] = path
    return found


def partition_heatmap(counts: Tensor, classes: Sequence[str]) -> Figure:
    """Samples of each class at each client; above it, a bar for each client's total.

    The colour follows the square root of the count, so that a few samples are still visible
    beside thousands; a class that a client lacks is left blank.

    Args:
        counts: [N, C] samples of each class at each client.
        classes: C names.
    """
    table = counts.cpu().numpy()
    clients, num_classes = table.shape
    figure = Figure(figsize=_size(clients, num_classes), dpi=_DPI, layout="constrained")
    sizes, cells = figure.subplots(2, sharex=True, height_ratios=[1, max(3, num_classes / 6)])
    sizes.bar(range(clients), table.sum(axis=1), color=_BAR, width=0.85)
    sizes.set_ylabel("samples")
    sizes.spines[["top", "right"]].set_visible(False)
    sizes.tick_params(axis="x", length=0)
    held = np.ma.masked_equal(table.T, 0)
    image = cells.imshow(
        held,
        cmap=colormaps["YlGnBu"].with_extremes(bad=_FAINT),
        norm=PowerNorm(0.5, vmin=0, vmax=max(1, table.max())),
        aspect="auto",
        interpolation="nearest",
    )
    if table.size <= _ANNOTATED_CELLS:
        _annotate(cells, image, held, "d")
    _label(cells.xaxis, "client", [str(client) for client in range(clients)])
    _label(cells.yaxis, "class", classes)
    figure.colorbar(image, ax=[sizes, cells], label="samples of a class", aspect=35, pad=0.02)
    figure.suptitle(f"Partition: {table.sum():,} samples, {clients} clients, {num_classes} classes")
    return figure


def similarity_heatmap(
    vectors: Tensor, classes: Sequence[str], superclasses: Sequence[str] = ()
) -> Figure:
    """Cosine similarity of every pair of classes; 0 is white. A zero vector has similarity 0.

    Args:
        vectors: [C, d] one prototype, or row of the head's weight, for each class.
        classes: C names.
        superclasses: C names of the super-classes that the classes belong to, if there are any:
            classes of one super-class are then adjacent, and the axes name the super-classes.
    """
    order = sorted(range(len(classes)), key=lambda c: superclasses[c]) if superclasses else None
    units = F.normalize(vectors.detach().cpu().double(), dim=1)[order or slice(None)]
    similarity = (units @ units.T).numpy()
    num_classes = len(similarity)
    side = float(np.clip(0.42 * num_classes, 3.6, 9))
    figure = Figure(figsize=(side + 1.8, side + 1), dpi=_DPI, layout="constrained")
    cells = figure.subplots()
    image = cells.imshow(similarity, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
    if num_classes <= _ANNOTATED_CLASSES:
        _annotate(cells, image, similarity, "z.2f")
    if order:
        _label_groups(cells, [superclasses[c] for c in order])
    else:
        _label(cells.xaxis, "class", classes)
        _label(cells.yaxis, "class", classes)
    if max(map(len, superclasses or classes)) > 2:
        cells.tick_params(axis="x", rotation=90)
    figure.colorbar(image, ax=cells, label="cosine similarity", shrink=0.85)
    cells.set_title("Similarity of class prototypes")
    return figure


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """The figure as an RGBA image [height, width, 4]."""
    buffer = BytesIO()
    figure.savefig(buffer, format="rgba")
    width, height = figure.canvas.get_width_height()
    return np.frombuffer(buffer.getvalue(), np.uint8).reshape(height, width, 4)


def _size(columns: int, rows: int) -> tuple[float, float]:
    """Inches for a grid of cells: in proportion to their number, within bounds."""
    return float(np.clip(0.42 * columns + 2, 6, 15)), float(np.clip(0.3 * rows + 2, 4, 13))


def _label(axis: Axis, name: str, labels: Sequence[str]) -> None:
    """Name the axis and at most 50 of its cells: all, every 5th, every 10th..."""
    step = next(step for step in (1, 5, 10, 20, 50, len(labels)) if len(labels) <= 50 * step)
    axis.set_ticks(range(0, len(labels), step), list(labels[::step]), fontsize=8)
    axis.set_label_text(name)


def _label_groups(cells: Axes, names: Sequence[str]) -> None:
    """Draw the borders between groups of equal adjacent names, and name each group once."""
    starts = [i for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    for start in starts[1:]:
        cells.axhline(start - 0.5, color="black", linewidth=0.4)
        cells.axvline(start - 0.5, color="black", linewidth=0.4)
    centres = [(a + b - 1) / 2 for a, b in pairwise([*starts, len(names)])]
    for axis in (cells.xaxis, cells.yaxis):
        axis.set_ticks(centres, [names[start] for start in starts], fontsize=7)
        axis.set_label_text("super-class")


def _annotate(cells: Axes, image: AxesImage, values: NDArray[np.generic], form: str) -> None:
    """Write each value that is not masked into its cell, in white where the cell is dark."""
    brightness = image.to_rgba(values)[..., :3] @ [0.299, 0.587, 0.114]
    for row, column in np.argwhere(~np.ma.getmaskarray(values)):
        color = "white" if brightness[row, column] < 0.5 else "black"
        text = format(values[row, column], form)
        cells.text(column, row, text, color=color, fontsize=7, ha="center", va="center")
