"""The tracker that saves figures as files, and figures as pixels.

Figures are made without pyplot, so they need no display and no global state.
"""

from collections import defaultdict
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedexp.core.data_figure import Arrays, DataFigure
from fedexp.tracking.tracker import Record, RunInfo, Tracker

_FOLDER = "figures"


class FigureFiles(Tracker):
    """Saves each figure as ``figures/<name>_<round>.png`` in the run's folder.

    The numbers of a ``DataFigure`` are beside it: columns of equal length as ``.csv``, other
    arrays as ``.npz``, for ``numpy.load``.
    """

    def __init__(self, run: RunInfo) -> None:
        self._folder = run.folder / _FOLDER

    def log(self, record: Record) -> None:
        """Save this round's figures."""
        for name, figure in record.figures.items():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{name.replace('/', '_')}_{record.round:04d}"
            figure.savefig(path.with_suffix(".png"))
            if isinstance(figure, DataFigure):
                _save_numbers(path, figure.data)


def _save_numbers(path: Path, data: Arrays) -> None:
    """Write ``path`` with ``.csv`` if ``data`` are columns of a table, otherwise with ``.npz``."""
    arrays: dict[str, Any] = {name: np.asarray(values) for name, values in data.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) == 1 and all(len(shape) == 1 for shape in shapes):
        import pandas as pd  # slow to import; not every run has such columns

        pd.DataFrame(arrays).to_csv(path.with_suffix(".csv"), index=False)
    else:
        np.savez_compressed(path.with_suffix(".npz"), allow_pickle=False, **arrays)


def saved_figures(folder: Path) -> dict[int, dict[str, Path]]:
    """Round -> name -> file, of what ``FigureFiles`` saved in a run's folder."""
    found: dict[int, dict[str, Path]] = defaultdict(dict)
    for path in sorted((folder / _FOLDER).glob("*_*.png")):
        name, _, round = path.stem.rpartition("_")
        found[int(round)][name.replace("_", "/", 1)] = path
    return found


def pixels(figure: Figure) -> NDArray[np.uint8]:
    """The figure as an RGBA image [height, width, 4]."""
    buffer = BytesIO()
    figure.savefig(buffer, format="rgba")
    width, height = figure.canvas.get_width_height()
    return np.frombuffer(buffer.getvalue(), np.uint8).reshape(height, width, 4)
