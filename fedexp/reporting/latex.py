"""Tables as LaTeX, with booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedexp.reporting.table import Table

PREAMBLE = "% These tables need \\usepackage{booktabs} in the preamble.\n\n"
"""The first line of a file of tables."""

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "[": "{[}",  # at the start of a row it would be an argument of the line before
    **{each: f"\\{each}" for each in "&%$#_{}"},
}
_LAST = re.compile(r"^\S*[/.](?=\S)")
_HAS_LETTERS = re.compile("[a-zA-Z]")
_MARKS = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "alarm": r"\textbf{%s} (!)"}


def latex(table: Table) -> str:
    """The table as a ``table`` environment; best in bold, second underlined.

    The preamble needs ``\\usepackage{booktabs}``. Headings are short; the caption has the whole
    names.
    """
    numbers = len(table.columns) - table.keys
    headings = short_headings(table.columns)
    cut = [
        f"{short} is {whole}"
        for short, whole in zip(headings, table.columns, strict=True)
        if short != whole.replace("_", " ")
    ]
    notes = [table.title + ".", *table.notes, *([f"Columns: {', '.join(cut)}."] if cut else [])]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{' '.join(map(escape, notes))}}}",
        rf"\begin{{tabular}}{{{'l' * table.keys}{'r' * numbers}}}",
        r"\toprule",
        _line(list(map(escape, headings))),
        r"\midrule",
    ]
    for r, row in enumerate(table.rows):
        cells = [
            _MARKS[table.marks[r, c]] % escape(cell) if (r, c) in table.marks else escape(cell)
            for c, cell in enumerate(row)
        ]
        lines.append(_line(cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def short_headings(names: Sequence[str]) -> list[str]:
    """Shorten names, ``global/accuracy`` to ``accuracy``, if unique; ``_`` becomes a space."""
    last = [_LAST.sub("", name).replace("_", " ") for name in names]
    return [
        short if last.count(short) == 1 and _HAS_LETTERS.search(short) else name.replace("_", " ")
        for short, name in zip(last, names, strict=True)
    ]


def escape(text: str) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(each, each) for each in text)


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
