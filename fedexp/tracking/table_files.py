"""The tracker that saves tables as files."""

import csv
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fedexp.state.run_folder import FILE_NAME
from fedexp.tracking.tracker import Record, RunInfo, Tracker

LOGGER = logging.getLogger(__name__)


class TableFiles(Tracker):
    """Appends each table and log to ``<name>.csv`` in the run's folder, after a column ``round``.

    NaN is an empty cell. When a run is resumed, rows of the rounds that are trained again are
    deleted. Nothing is written if another run has taken the place of the folder.
    """

    def __init__(self, run: RunInfo) -> None:
        self._folder, self._identity = run.folder, _content(run.folder)
        for path in run.folder.glob("*.csv") if run.resumed else ():
            _delete_rounds_after(run.rounds_done, path)

    def log(self, record: Record) -> None:
        """Save this round's tables and logs."""
        if _content(self._folder) not in (self._identity, b""):
            return
        for name, table in {**record.tables, **record.logs}.items():
            path = self._folder / f"{name}.csv"
            heading = [] if path.exists() else [["round", *table]]
            rows = zip(*table.values(), strict=True)
            _write(path, "a", [*heading, *([record.round, *row] for row in rows)])


def _content(folder: Path) -> bytes:
    """The content of the folder's ``run.json``; empty if there is none."""
    try:
        return (folder / FILE_NAME).read_bytes()
    except OSError:
        return b""


def _write(path: Path, mode: str, rows: Iterable[Iterable[Any]]) -> None:
    # The name of a folder may be no valid UTF-8; such a class name gets escapes.
    with path.open(mode, newline="", encoding="utf-8", errors="backslashreplace") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([["" if cell != cell else cell for cell in row] for row in rows])


def _delete_rounds_after(round: int, path: Path) -> None:
    """Delete the rows of later rounds from a table that ``TableFiles`` wrote.

    A file that is not such a table, perhaps after a power loss, is renamed with a warning.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            heading = next(rows, [""])
            whole = (row for row in rows if len(row) == len(heading))  # a kill may cut the last row
            kept = [row for row in whole if int(row[0]) <= round] if heading[0] == "round" else None
    except (ValueError, IndexError, csv.Error) as error:
        aside = path.with_name(f"{path.name}.damaged")
        path.replace(aside)
        LOGGER.warning("%s is damaged (%s), now named %s", path, error, aside.name)
        return
    if kept is not None:
        _write(path, "w", [heading, *kept])
