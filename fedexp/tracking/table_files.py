"""The tracker that saves tables and logs as CSV files."""

import csv
import logging
from collections.abc import Iterable
from io import StringIO
from pathlib import Path
from typing import Any

from fedexp.state.atomic import write_atomically
from fedexp.state.run_folder import FILE_NAME
from fedexp.tracking.tracker import Record, RunInfo, Tracker

LOGGER = logging.getLogger(__name__)


class TableFiles(Tracker):
    """Appends each table and log to ``<name>.csv`` in the run's folder, with a column ``round``.

    The file's name has ``_`` in place of each ``/``. NaN becomes an empty cell. When a run is
    resumed, the rows of rounds that are trained again are deleted. If another run now uses the
    folder, nothing is written.
    """

    def __init__(self, run: RunInfo) -> None:
        self._folder, self._identity = run.folder, _content(run.folder)
        last = run.rounds_done or -1  # without a finished round, round 0 is measured again, too
        for path in run.folder.glob("*.csv") if run.resumed else ():
            _delete_rounds_after(last, path)

    def log(self, record: Record) -> None:
        """Append this round's tables and logs to their files."""
        if _content(self._folder) not in (self._identity, b""):
            return
        for name, table in {**record.tables, **record.logs}.items():
            path = self._folder / f"{name.replace('/', '_')}.csv"
            is_new = not path.exists() or not path.stat().st_size  # a kill may leave an empty file
            heading = [["round", *table]] if is_new else []
            rows = zip(*table.values(), strict=True)
            with path.open("ab") as file:
                file.write(_lines([*heading, *([record.round, *row] for row in rows)]))


def _content(folder: Path) -> bytes:
    """The content of the folder's ``run.json``; empty if the file cannot be read."""
    try:
        return (folder / FILE_NAME).read_bytes()
    except OSError:
        return b""


def _lines(rows: Iterable[Iterable[Any]]) -> bytes:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([["" if cell != cell else cell for cell in row] for row in rows])
    # Escape invalid bytes: a class may be named after a folder whose name is not valid UTF-8.
    return text.getvalue().encode(errors="backslashreplace")


def _delete_rounds_after(round: int, path: Path) -> None:
    """Delete the rows after this round from a table that ``TableFiles`` wrote.

    A file that cannot be read as a table, perhaps after a power loss, is renamed with a warning.
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
        write_atomically(path, _lines([heading, *kept]))
