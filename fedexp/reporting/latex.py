"""Tables as LaTeX, with booktabs."""

from __future__ import annotations

from fedexp.reporting.table import Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    **{each: f"\\{each}" for each in "&%$#_{}"},
}
_MARKS = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "alarm": r"\textbf{%s} (!)"}


def latex(table: Table) -> str:
    """The table as a ``table`` environment; best in bold, second underlined.

    It needs ``\\usepackage{booktabs}``.
    """
    numbers = len(table.columns) - table.keys
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{' '.join(map(escape, [table.title + '.', *table.notes]))}}}",
        rf"\begin{{tabular}}{{{'l' * table.keys}{'r' * numbers}}}",
        r"\toprule",
        _line(list(map(escape, table.columns))),
        r"\midrule",
    ]
    for r, row in enumerate(table.rows):
        cells = [
            _MARKS[table.marks[r, c]] % escape(cell) if (r, c) in table.marks else escape(cell)
            for c, cell in enumerate(row)
        ]
        lines.append(_line(cells))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def escape(text: str) -> str:
    """The text with LaTeX's special characters escaped."""
    return "".join(_SPECIAL.get(each, each) for each in text)


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"
