"""Pictures that compare methods, drawn from the arrays that runs save with their figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedexp.drawing.client_bars import bars
from fedexp.drawing.data_figure import read_numbers
from fedexp.drawing.heatmaps import draw_similarity
from fedexp.drawing.panels import bar_below, legend_below, name_axes, panels
from fedexp.drawing.style import COLORS, REFERENCE
from fedexp.drawing.texts import printable
from fedexp.reporting.drawing import pages
from fedexp.reporting.labels import Label, short_texts
from fedexp.reporting.runs import Run, is_within

Numbers = Mapping[str, NDArray[Any]]
Saved = Mapping[str, tuple[int, Numbers]]
"""Short label of a configuration -> (round, name -> array saved in this round)."""

_PANELS = 6


@dataclass(frozen=True)
class SavedPicture:
    """A picture of the arrays that runs save, with a panel for each configuration.

    Attributes:
        name: the name of the files ``figures/<name>_<round>.csv`` or ``.npz``; the file of the last
            round is shown.
        title: the heading above the picture.
        arrays: the names of the arrays that are drawn; a file without one of them is ignored.
        draw: draws one figure.
        is_square: whether the arrays are square matrices; if not, they are columns of equal length.
    """

    name: str
    title: str
    arrays: tuple[str, ...]
    draw: Callable[[Saved], Figure]
    is_square: bool = False

    def pages(
        self, configurations: Mapping[Label, Sequence[Run]], problems: list[str]
    ) -> list[Callable[[], Figure | None]]:
        """Make functions that each draw up to six configurations side by side.

        Args:
            configurations: label -> its runs. The first run that saved such arrays is shown.
            problems: a list; drawing a figure appends a line to it for each file that is left out.
        """
        paths: dict[str, Path] = {}
        names = short_texts(list(configurations))
        for text, runs in zip(names, configurations.values(), strict=True):
            found = filter(None, (_last(run.folder, self.name) for run in runs))
            if path := next(found, None):
                paths[text] = path
        groups = pages(paths.items(), _PANELS)
        return [partial(self._draw_page, dict(page), problems) for page in groups]

    def _draw_page(self, paths: Mapping[str, Path], problems: list[str]) -> Figure | None:
        """Draw the files that can be drawn; any other file adds a line to ``problems``."""
        found: dict[str, tuple[int, Numbers]] = {}
        for text, path in paths.items():
            try:
                numbers = read_numbers(path)
                if {*self.arrays} <= numbers.keys():
                    self._check([numbers[name] for name in self.arrays])
                    found[text] = (int(path.stem.rpartition("_")[2]), numbers)
            except (OSError, ValueError) as error:
                reason = str(error).partition("\n")[0]
                problems.append(printable(f"{path}: left out of its picture ({reason})"))
        return self.draw(found) if found else None

    def _check(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Raise ValueError unless the arrays have the right shapes and finite numbers only."""
        shapes = {array.shape for array in arrays}
        sides = {side for shape in shapes for side in shape}
        dimensions = 2 if self.is_square else 1
        if len(sides) != 1 or 0 in sides or {*map(len, shapes)} != {dimensions}:
            kind = "square" if self.is_square else "columns of equal length"
            raise ValueError(f"{', '.join(self.arrays)}: should be {kind}, have shapes {shapes}")
        for array in arrays:
            if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                raise ValueError("should have finite numbers only")


def _last(run: Path, name: str) -> Path | None:
    """The last round's file; None if there is no file. Ignores links out of the run's folder."""
    files = (path for kind in ("csv", "npz") for path in run.glob(f"figures/{name}_[0-9]*.{kind}"))
    own = [path for path in files if is_within(path, run)]
    # A round has four digits or, from 10,000 on, more: longer names come later.
    return max(own, key=lambda path: (len(path.name), path.name), default=None)


def similarity_panels(saved: Saved) -> Figure:
    """Draw the cosine similarity of the class prototypes, a panel for each method.

    Classes are ordered by super-class if the dataset has super-classes.
    """
    figure, axes = panels(len(saved), width=3.6, height=3.4)
    for cells, (name, (round_number, arrays)) in zip(axes, saved.items(), strict=True):
        groups = arrays.get("superclasses", np.empty(0))
        matrix = arrays["similarity"]
        if len(groups) == len(matrix):
            order = np.argsort(groups, kind="stable")
            matrix = matrix[np.ix_(order, order)]
        draw_similarity(cells, matrix)
        cells.grid(visible=False)
        name_axes(cells, "class", "class", f"{name}, round {round_number}")
    bar_below(figure, axes[0].images[0], "cosine similarity")
    return figure


def entropy_panels(saved: Saved) -> Figure:
    """Draw the true and estimated label entropy of each client, a panel for each method.

    Clients are ordered by true entropy (HiCS-FL, Figures 9 to 12).
    """
    figure, axes = panels(len(saved))
    for cells, (name, (round_number, arrays)) in zip(axes, saved.items(), strict=True):
        order = np.argsort(arrays["true_nats"], kind="stable")
        bars(cells, arrays["true_nats"][order], -0.42, 0, color=REFERENCE, label="true")
        bars(cells, arrays["estimated_nats"][order], 0, 0.42, color=COLORS[1], label="estimated")
        title = f"{name}, round {round_number}"
        name_axes(cells, "clients, by true entropy", "label entropy (nats)", title)
    legend_below(figure, axes)
    return figure


def selection_panels(saved: Saved) -> Figure:
    """Plot each client's accepted updates against its label entropy, a panel for each method.

    Each client is a point. The clients, ordered by entropy, are divided into ten groups; a line
    connects the means of the groups. All panels have equal axes.
    """
    figure, axes = panels(len(saved))
    most = max(arrays["times_chosen"].max() for _, arrays in saved.values())
    widest = max(arrays["label_entropy_nats"].max() for _, arrays in saved.values())
    for cells, (name, (round_number, arrays)) in zip(axes, saved.items(), strict=True):
        entropies, times = arrays["label_entropy_nats"], arrays["times_chosen"]
        cells.plot(entropies, times, "o", ms=3, alpha=0.45, mew=0, color=COLORS[0], label="client")
        tenths = np.array_split(np.argsort(entropies, kind="stable"), min(10, len(times)))
        means = np.array([(entropies[each].mean(), times[each].mean()) for each in tenths])
        cells.plot(*means.T, color=COLORS[1], lw=1.8, label="mean of a tenth of the clients")
        name_axes(
            cells, "label entropy (nats)", "accepted updates", f"{name}, {round_number} rounds"
        )
        cells.set(xlim=(-0.03 * widest - 0.01, 1.03 * widest + 0.01), ylim=(0, 1.05 * most + 0.5))
    legend_below(figure, axes)
    return figure


SAVED = (
    SavedPicture(
        "sampler_times_chosen",
        "Accepted updates, by label entropy",
        ("times_chosen", "label_entropy_nats"),
        selection_panels,
    ),
    SavedPicture(
        "sampler_entropy_bars",
        "Label entropy of the clients",
        ("true_nats", "estimated_nats"),
        entropy_panels,
    ),
    SavedPicture(
        "heatmap_prototype_similarity",
        "Similarity of class prototypes",
        ("similarity",),
        similarity_panels,
        is_square=True,
    ),
)
"""The pictures in a report, in order."""
