"""Pictures that compare methods, drawn from the arrays that runs save with their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedexp.drawing.client_bars import bars
from fedexp.drawing.data_figure import read_numbers
from fedexp.drawing.heatmaps import draw_similarity
from fedexp.drawing.panels import bar_below, legend_below, name_axes, panels
from fedexp.drawing.style import COLORS, REFERENCE
from fedexp.drawing.texts import printable
from fedexp.reporting.labels import Label, short_texts
from fedexp.reporting.pages import pages
from fedexp.reporting.runs import is_within

if TYPE_CHECKING:
    from fedexp.reporting.runs import Run

Numbers = Mapping[str, NDArray[Any]]
Saved = Mapping[str, tuple[int, Numbers]]
"""Short label of a configuration -> (round, name -> array saved in this round)."""

_PANELS = 6


def side_by_side(
    configurations: Mapping[Label, Sequence[Run]],
    name: str,
    check: Callable[[Numbers], None],
    draw: Callable[[Saved], Figure | None],
    problems: list[str],
) -> list[Callable[[], Figure | None]]:
    """Make functions that each draw the arrays of up to six configurations side by side.

    Args:
        configurations: label -> its runs. The first run that saved such arrays is shown.
        name: the name of the files ``figures/<name>_<round>.csv`` or ``.npz``; the file of the last
            round is shown.
        check: raises ValueError if a file's arrays cannot be drawn.
        draw: draws one figure; returns None if there is nothing to draw.
        problems: a list; drawing a figure appends a line to it for each file that is left out.
    """
    paths: dict[str, Path] = {}
    for text, runs in zip(short_texts(list(configurations)), configurations.values(), strict=True):
        found = filter(None, (_last(run.folder, name) for run in runs))
        if path := next(found, None):
            paths[text] = path

    def drawn(page: Mapping[str, Path]) -> Figure | None:
        return draw(_read(page, check, problems))

    return [partial(drawn, dict(page)) for page in pages(paths.items(), _PANELS)]


def _read(
    paths: Mapping[str, Path], check: Callable[[Numbers], None], problems: list[str]
) -> dict[str, tuple[int, Numbers]]:
    """Read the files that can be drawn: short label -> (round, arrays).

    Any other file adds a line to ``problems``.
    """
    found: dict[str, tuple[int, Numbers]] = {}
    for text, path in paths.items():
        try:
            numbers = read_numbers(path)
            check(numbers)
            found[text] = (int(path.stem.rpartition("_")[2]), numbers)
        except (OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            problems.append(printable(f"{path}: left out of its picture ({reason})"))
    return found


def _last(run: Path, name: str) -> Path | None:
    """The last round's file; None if there is no file. Ignores links out of the run's folder."""
    files = (path for kind in ("csv", "npz") for path in run.glob(f"figures/{name}_[0-9]*.{kind}"))
    own = [path for path in files if is_within(path, run)]
    # A round has four digits or, from 10,000 on, more: longer names come later.
    return max(own, key=lambda path: (len(path.name), path.name), default=None)


def check_columns(*names: str) -> Callable[[Numbers], None]:
    """Make a check that the named arrays are columns of equal length with finite numbers.

    Otherwise the check raises ValueError. An absent array passes.
    """

    def check(arrays: Numbers) -> None:
        columns = [arrays[name] for name in names if name in arrays]
        shapes = {array.shape for array in columns}
        if len(shapes) > 1 or any(len(shape) != 1 or not shape[0] for shape in shapes):
            raise ValueError(f"{', '.join(names)}: should be columns, have shapes {shapes}")
        _check_numbers(columns)

    return check


def check_square(name: str) -> Callable[[Numbers], None]:
    """Make a check that the named array is a square matrix of finite numbers.

    Otherwise the check raises ValueError. An absent array passes.
    """

    def check(arrays: Numbers) -> None:
        array = arrays.get(name, np.ones((1, 1)))
        if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
            raise ValueError(f"{name}: should be square, has shape {array.shape}")
        _check_numbers([array])

    return check


def _check_numbers(arrays: Sequence[NDArray[Any]]) -> None:
    for array in arrays:
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise ValueError("should have finite numbers only")


def similarity_panels(saved: Saved) -> Figure | None:
    """Draw the cosine similarity of the class prototypes, a panel for each method.

    Classes are ordered by super-class if the dataset has super-classes. Returns None if there is
    nothing to draw.
    """
    known = _with_columns(saved, "similarity")
    if not known:
        return None
    figure, axes = panels(len(known), width=3.6, height=3.4)
    for cells, (name, (round_number, arrays)) in zip(axes, known.items(), strict=True):
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


def entropy_panels(saved: Saved) -> Figure | None:
    """Draw the true and estimated label entropy of each client, a panel for each method.

    Clients are ordered by true entropy (HiCS-FL, Figures 9 to 12). Returns None if there is nothing
    to draw.
    """
    known = _with_columns(saved, "true_nats", "estimated_nats")
    if not known:
        return None
    figure, axes = panels(len(known))
    for cells, (name, (round_number, arrays)) in zip(axes, known.items(), strict=True):
        order = np.argsort(arrays["true_nats"], kind="stable")
        bars(cells, arrays["true_nats"][order], -0.42, 0, color=REFERENCE, label="true")
        bars(cells, arrays["estimated_nats"][order], 0, 0.42, color=COLORS[1], label="estimated")
        name_axes(
            cells,
            "clients, by true entropy",
            "label entropy (nats)",
            f"{name}, round {round_number}",
        )
    legend_below(figure, axes)
    return figure


def selection_panels(saved: Saved) -> Figure | None:
    """Plot each client's number of draws against its label entropy, a panel for each method.

    Each client is a point. The clients, ordered by entropy, are divided into ten groups; a line
    connects the means of the groups. All panels have equal axes. Returns None if there is nothing
    to draw.
    """
    known = _with_columns(saved, "times_chosen", "label_entropy_nats")
    if not known:
        return None
    figure, axes = panels(len(known))
    most = max(arrays["times_chosen"].max() for _, arrays in known.values())
    widest = max(arrays["label_entropy_nats"].max() for _, arrays in known.values())
    for cells, (name, (round_number, arrays)) in zip(axes, known.items(), strict=True):
        entropies, times = arrays["label_entropy_nats"], arrays["times_chosen"]
        cells.plot(entropies, times, "o", ms=3, alpha=0.45, mew=0, color=COLORS[0], label="client")
        tenths = np.array_split(np.argsort(entropies, kind="stable"), min(10, len(times)))
        means = np.array([(entropies[each].mean(), times[each].mean()) for each in tenths])
        cells.plot(*means.T, color=COLORS[1], lw=1.8, label="mean of a tenth of the clients")
        name_axes(cells, "label entropy (nats)", "times chosen", f"{name}, {round_number} rounds")
        cells.set(xlim=(-0.03 * widest - 0.01, 1.03 * widest + 0.01), ylim=(0, 1.05 * most + 0.5))
    legend_below(figure, axes)
    return figure


def _with_columns(saved: Saved, *columns: str) -> dict[str, tuple[int, Numbers]]:
    return {name: each for name, each in saved.items() if {*columns} <= each[1].keys()}
