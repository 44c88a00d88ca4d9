"""Tables as Markdown."""

from __future__ import annotations

from fedexp.reporting.table import Table

_MARKS = {"best": "**{}**", "second": "<u>{}</u>", "alarm": "**{}** (!)"}
_SPECIAL = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", **{each: f"\\{each}" for each in "\\`*[]|"}}
)


def markdown(table: Table) -> str:
    """The table with its title and notes; best in bold, second underlined."""
    columns = list(map(escape, table.columns))
    lines = [f"### {escape(table.title)}", "", _line(columns), _line(["---"] * len(columns))]
    for r, row in enumerate(table.rows):
        cells = [
            _MARKS.get(table.marks.get((r, c), ""), "{}").format(escape(cell))
            for c, cell in enumerate(row)
        ]
        lines.append(_line(cells))
    lines += [line for note in table.notes for line in ("", escape(note))]
    return "\n".join(lines) + "\n"


def escape(text: str) -> str:
    """Escape the text, so that Markdown shows no HTML, links or formatting in it."""
    return text.translate(_SPECIAL)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
