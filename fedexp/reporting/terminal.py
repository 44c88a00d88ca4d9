"""Tables in the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from fedexp.reporting.table import Table

_STYLES = {"best": "bold", "second": "underline", "alarm": "bold red"}
_ROWS = 40
_LONG_NUMBER = re.compile(r"-?\d+\.\d{6,}(e-?\d+)?")


def print_table(table: Table, console: Console) -> None:
    """Print at most 40 rows and the columns that fit the terminal; name the other columns.

    If not all columns fit, long numbers in the keys are rounded first.
    """
    kept = list(range(len(table.columns)))
    if not _fits(table, kept, console):
        table = _rounded(table)
        kept = _fitting(table, console)
    cut = [name for number, name in enumerate(table.columns) if number not in kept]
    console.print(_draw(_with_columns(table, kept)))
    if len(table.rows) > _ROWS:
        console.print(f"{len(table.rows) - _ROWS} more rows are in the files (--to DIR).")
    if cut:
        console.print(f"Too wide for the terminal, in the files (--to DIR): {', '.join(cut)}")
    for note in table.notes:
        console.print(note)


def _fitting(table: Table, console: Console) -> list[int]:
    """The numbers of the columns that fit the terminal's width, ascending.

    If not all columns fit, optional columns are left out first, then columns from the right. The
    keys, the number of seeds ``n`` beside them, and one more column always remain; if even these
    are too wide, the keys are folded.
    """
    first = table.keys + (table.columns[table.keys : table.keys + 1] == ["n"])
    kept = list(range(len(table.columns)))
    optional = [table.columns.index(name) for name in table.optional]
    for column in [*optional, *(n for n in reversed(kept) if n not in optional)]:
        if _fits(table, kept, console):
            break
        if column >= first and len(kept) > first + 1:
            kept.remove(column)
    return kept


def _fits(table: Table, kept: Sequence[int], console: Console) -> bool:
    """Whether these columns fit the terminal's width."""
    boundless = console.options.update(width=10_000)
    drawn = _draw(_with_columns(table, kept))
    return bool(console.measure(drawn, options=boundless).maximum <= console.width)


def _rounded(table: Table) -> Table:
    """Round the keys' long numbers to four digits, if their column still tells the rows apart."""
    columns = [list(column) for column in zip(*table.rows, strict=True)]
    for number, column in enumerate(columns[: table.keys]):
        short = [f"{float(cell):.4g}" if _LONG_NUMBER.fullmatch(cell) else cell for cell in column]
        if len({*short}) == len({*column}):
            columns[number] = short
    return replace(table, rows=[list(row) for row in zip(*columns, strict=True)])


def _with_columns(table: Table, kept: Sequence[int]) -> Table:
    """Make a table of only the columns with the numbers in ``kept``."""
    return replace(
        table,
        columns=[table.columns[n] for n in kept],
        rows=[[row[n] for n in kept] for row in table.rows],
        marks={(r, kept.index(c)): mark for (r, c), mark in table.marks.items() if c in kept},
    )


def _draw(table: Table) -> Drawn:
    # A long title does not widen the table, because it may wrap.
    drawn = Drawn(title=Text(table.title), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for number, name in enumerate(table.columns):
        is_key = number < table.keys
        heading = (
            name.replace("/", "\n").replace("_", "\n", 1).replace(", ", ",\n")
            if not is_key
            else name
        )
        drawn.add_column(Text(heading), no_wrap=not is_key, overflow="fold")
    for r, row in enumerate(table.rows[:_ROWS]):
        # Cells are Text objects, because rich would read a str such as "[0.1,1]" as markup.
        drawn.add_row(
            *(
                Text(cell, _STYLES.get(table.marks.get((r, c), ""), ""))
                for c, cell in enumerate(row)
            )
        )
    return drawn
