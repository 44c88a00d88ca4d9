"""The numbers that runs saved beside their pictures, drawn for several methods side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedexp.reporting.labels import Label, short_texts
from fedexp.reporting.style import COLORS, PUBLISHED, legend_below, panels

if TYPE_CHECKING:
    from fedexp.reporting.runs import Run

Arrays = Mapping[str, NDArray[Any]]
_MOST_PANELS = 9


def saved_arrays(
    configurations: Mapping[Label, Sequence[Run]], name: str
) -> dict[str, tuple[int, Arrays]]:
    """Configuration -> (round, arrays) of the last ``figures/<name>_<round>.npz`` of its first run.

    Configurations without one are absent, and those after the ninth; so are damaged files.
    """
    found: dict[str, tuple[int, Arrays]] = {}
    for text, runs in zip(short_texts(list(configurations)), configurations.values(), strict=True):
        paths = sorted((runs[0].folder / "figures").glob(f"{name}_[0-9]*.npz"))
        if not paths or len(found) == _MOST_PANELS:
            continue
        try:
            with np.load(paths[-1], allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files}
        except (OSError, ValueError):
            continue
        found[text] = (int(paths[-1].stem.rpartition("_")[2]), arrays)
    return found


def similarity_panels(saved: Mapping[str, tuple[int, Arrays]]) -> Figure | None:
    """Cosine similarity of the class prototypes, a panel for each method, one colour scale.

    Classes are ordered by super-class where there are such. None if there is nothing to draw.
    """
    known = {name: each for name, each in saved.items() if "similarity" in each[1]}
    if not known:
        return None
    figure, axes = panels(len(known), width=3.6, height=3.4)
    for cells, (name, (round_number, arrays)) in zip(axes, known.items(), strict=True):
        groups = arrays.get("superclasses", np.empty(0))
        matrix = arrays["similarity"]
        if len(groups) == len(matrix):
            order = np.argsort(groups, kind="stable")
            matrix = matrix[np.ix_(order, order)]
        cells.imshow(matrix, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
        cells.grid(visible=False)
        cells.set_title(f"{name}, round {round_number}", fontsize=9)
        cells.set(xlabel="class", ylabel="class")
    figure.colorbar(axes[0].images[0], ax=axes, label="cosine similarity", shrink=0.7)
    return figure


def entropy_panels(saved: Mapping[str, tuple[int, Arrays]]) -> Figure | None:
    """True and estimated label entropy of each client, a panel for each method (HiCS-FL, Fig. 9).

    Clients are ordered by true entropy. None if there is nothing to draw.
    """
    wanted = {"true_nats", "estimated_nats"}
    known = {name: each for name, each in saved.items() if wanted <= each[1].keys()}
    if not known:
        return None
    figure, axes = panels(len(known))
    for cells, (name, (round_number, arrays)) in zip(axes, known.items(), strict=True):
        order = np.argsort(arrays["true_nats"], kind="stable")
        places = np.arange(len(order))
        cells.bar(places, arrays["true_nats"][order], color=PUBLISHED, width=0.9, label="true")
        cells.plot(
            places, arrays["estimated_nats"][order], "o", ms=3, color=COLORS[1], label="estimated"
        )
        cells.set_title(f"{name}, round {round_number}", fontsize=9)
        cells.set(xlabel="clients, by true entropy", ylabel="label entropy (nats)")
    legend_below(figure, axes)
    return figure
