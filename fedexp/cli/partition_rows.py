"""The partition as a table in the terminal."""

import csv
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from fedexp.drawing.texts import legible, printable
from fedexp.state.run_folder import CLIENT_NAME

_ROWS = 40


def print_partition(path: Path, console: Console) -> None:
    """Print ``partition.csv``: each client's class counts, number of samples and of classes.

    Clients that are users of the dataset have a name, too.
    If the columns of the classes do not fit, one column names each client's largest class. At most
    the first 40 clients are printed.
    """
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader)
        first = 2 if header[1:2] == [CLIENT_NAME] else 1
        classes = header[first:]
        rows = [(row[:first], [*map(int, row[first:])]) for row in islice(reader, _ROWS)]
        more = sum(1 for _ in reader)
    wide = _table(classes, rows, every_class=True)
    boundless = console.options.update(width=100_000)
    fits = console.measure(wide, options=boundless).maximum <= console.width
    console.print(wide if fits else _table(classes, rows, every_class=False))
    if more:
        console.print(f"{more:,} more clients are in {path.name}.")


def _table(
    classes: Sequence[str], rows: Sequence[tuple[list[str], Sequence[int]]], every_class: bool
) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1))  # ten classes fit into 80 characters
    table.add_column("client", justify="right")
    if rows and len(rows[0][0]) > 1:
        table.add_column("name")
    table.add_column("samples", justify="right")
    for name in classes if every_class else ["largest class"]:
        table.add_column(printable(name), justify="right")
    table.add_column("classes", justify="right")
    for client, counts in rows:
        held = sum(count > 0 for count in counts)
        shown = [str(count) for count in counts] if every_class else [_largest(classes, counts)]
        table.add_row(*map(legible, client), str(sum(counts)), *shown, str(held))
    return table


def _largest(classes: Sequence[str], counts: Sequence[int]) -> str:
    """The class with the most samples, and its share: ``7 (45 %)``; empty without samples."""
    if not sum(counts):
        return ""
    most = max(range(len(counts)), key=counts.__getitem__)
    return f"{printable(classes[most])} ({counts[most] / sum(counts):.0%})"
