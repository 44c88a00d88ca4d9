"""Tables as Markdown."""

from __future__ import annotations

from fedexp.reporting.table import Table

_MARKS = {"best": "**{}**", "second": "<u>{}</u>", "alarm": "**{}** (!)"}


def markdown(table: Table) -> str:
    """The table with its title and notes; best in bold, second underlined."""
    lines = [f"### {table.title}", "", _line(table.columns), _line(["---"] * len(table.columns))]
    for r, row in enumerate(table.rows):
        cells = [
            _MARKS[table.marks[r, c]].format(cell) if (r, c) in table.marks else cell
            for c, cell in enumerate(row)
        ]
        lines.append(_line([cell.replace("|", "\\|") for cell in cells]))
    lines += [line for note in table.notes for line in ("", note)]
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
