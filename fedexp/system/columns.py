"""Reads columns of numbers from a small CSV file, with a one-line error for each mistake."""

import csv
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from fedexp.errors import InputError, readable


def read_columns(
    key: str, path: Path, needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Read a CSV file: column name -> the column's numbers, float64 [n].

    The first line has the names of the columns. Lines that begin with ``#`` are comments. A column
    ``name`` may hold text and is not read.

    Args:
        key: the config key of the file, for errors.
        path: the file.
        needed: the columns that must be there.
        optional: the columns that may be there.

    Raises:
        InputError: the file cannot be read, a column is missing or unknown, or a cell is not a
            finite number of at least 0.
    """
    place = f"{key}={path}"
    heading, *rows = _rows(place, path)
    _check_heading(place, heading, needed, optional)
    columns: dict[str, list[float]] = {name: [] for name in heading if name != "name"}
    for number, row in enumerate(rows, start=1):
        if len(row) != len(heading):
            raise InputError(
                f"{place}: row {number} has {len(row)} values, but there are {len(heading)} columns"
            )
        for name, cell in zip(heading, row, strict=True):
            if name != "name":
                columns[name].append(_number(place, name, number, cell))
    return {name: np.array(values, dtype=np.float64) for name, values in columns.items()}


def check_positive(place: str, columns: dict[str, np.ndarray], names: Collection[str]) -> None:
    """Raise InputError if a column in ``names`` has a 0; ``place`` is the key and the file."""
    for name in names:
        if name in columns and not columns[name].all():
            row = int(np.flatnonzero(columns[name] == 0)[0]) + 1
            raise InputError(f"{place}: {name} is 0 in row {row}; should be above 0")


def _rows(place: str, path: Path) -> list[list[str]]:
    """The heading and at least one row, as lists of cells without surrounding spaces."""
    with readable(place, UnicodeDecodeError, csv.Error):
        text = path.expanduser().read_text(encoding="utf-8-sig")
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    if len(rows) < 2:
        raise InputError(f"{place}: needs a line of column names and at least one row")
    return rows


def _check_heading(
    place: str, heading: Sequence[str], needed: Sequence[str], optional: Sequence[str]
) -> None:
    for name in needed:
        if name not in heading:
            raise InputError(f"{place}: lacks the column {name}; needs {', '.join(needed)}")
    known = [*needed, *optional, "name"]
    for place_in_row, name in enumerate(heading):
        if name not in known:
            raise InputError(f"{place}: unknown column {name!r}; there are {', '.join(known)}")
        if name in heading[:place_in_row]:
            raise InputError(f"{place}: two columns are named {name}")


def _number(place: str, column: str, row: int, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = -1.0
    if not 0 <= value < np.inf:
        raise InputError(
            f"{place}: {column} is {cell!r} in row {row}; should be a number of at least 0"
        )
    return value
