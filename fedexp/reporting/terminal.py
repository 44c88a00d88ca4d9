"""Tables in the terminal."""

from __future__ import annotations

from dataclasses import replace

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from fedexp.reporting.table import Table

_STYLES = {"best": "bold", "second": "underline", "alarm": "bold red"}
_ROWS = 40


def print_table(table: Table, console: Console) -> None:
    """Print the columns that fit, from the left, and say what was left out."""
    shown = _fitting(table, console)
    cut = table.columns[len(shown.columns) :]
    console.print(_draw(shown))
    if len(table.rows) > _ROWS:
        console.print(f"{len(table.rows) - _ROWS} more rows are in the files (--to DIR).")
    if cut:
        console.print(f"Too wide for the terminal, in the files (--to DIR): {', '.join(cut)}")
    for note in table.notes:
        console.print(note)


def _fitting(table: Table, console: Console) -> Table:
    """The table without those columns at its right end that do not fit."""
    boundless = console.options.update(width=10_000)
    for count in range(len(table.columns), table.keys + 1, -1):
        shown = replace(
            table, columns=table.columns[:count], rows=[row[:count] for row in table.rows]
        )
        if console.measure(_draw(shown), options=boundless).maximum <= console.width:
            return shown
    count = table.keys + 1
    return replace(table, columns=table.columns[:count], rows=[row[:count] for row in table.rows])


def _draw(table: Table) -> Drawn:
    # The title is left out of the measure: it may wrap.
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
        # Text, as a list such as [0.1,1] in an override is no markup.
        drawn.add_row(
            *(
                Text(cell, _STYLES.get(table.marks.get((r, c), ""), ""))
                for c, cell in enumerate(row)
            )
        )
    return drawn
