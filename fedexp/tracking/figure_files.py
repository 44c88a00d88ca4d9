"""The tracker that saves figures, and the numbers in them, as files."""

from collections import defaultdict
from pathlib import Path

from fedexp.drawing.data_figure import DataFigure, save_numbers, save_picture, title_of
from fedexp.tracking.failed_figures import leaving_out
from fedexp.tracking.tracker import Record, RunInfo, Tracker

_FOLDER = "figures"


class FigureFiles(Tracker):
    """Saves each figure as ``figures/<name>_<round>.png`` in the run's folder.

    The file's name has ``_`` in place of each ``/``; the title inside the file is the whole name.
    The numbers in a ``DataFigure`` are saved beside the picture, under the same name. Columns of
    equal length become a ``.csv`` file, other arrays an ``.npz`` file for ``numpy.load``.
    """

    def __init__(self, run: RunInfo) -> None:
        self._folder = run.folder / _FOLDER

    def log(self, record: Record) -> None:
        """Save this round's figures."""
        for name, figure in record.figures.items():
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / f"{name.replace('/', '_')}_{record.round:04d}"
            with leaving_out(name, figure):
                save_picture(path.with_name(f"{path.name}.png"), figure, name)
                if isinstance(figure, DataFigure):
                    save_numbers(path, figure.data)


def saved_figures(folder: Path) -> dict[int, dict[str, Path]]:
    """The figures that are saved in a run's folder: round -> name of the figure -> file."""
    found: dict[int, dict[str, Path]] = defaultdict(dict)
    for path in sorted((folder / _FOLDER).glob("*_*.png")):
        name, _, round = path.stem.rpartition("_")
        if round.isdecimal():  # not a file of another program
            # A file of an earlier version has no title; most names had one "/".
            found[int(round)][title_of(path) or name.replace("_", "/", 1)] = path
    return found
