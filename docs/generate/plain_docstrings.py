"""Docstrings are plain text with code in double back-ticks; Sphinx would read marks in formulas."""

import re
from typing import Any

from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Escape the marks before napoleon looks for sections."""
    app.connect("autodoc-process-docstring", _escape, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _escape(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = [_escaped(line) for line in lines]
    if what in ("data", "attribute", "property"):
        lines.insert(0, "")  # napoleon would read a colon in the first line as a type's end


def _escaped(line: str) -> str:
    parts = re.split(r"(``[^`]*``)", line)
    line = "".join(
        part if part.startswith("``") else re.sub(r"(?<=\S)([*|])|([*|])(?=\S)", r"\\\g<0>", part)
        for part in parts
    )
    return re.sub(r": ([A-Z])\.$", r": \\\1.", line)  # "C." alone would be a list's item
