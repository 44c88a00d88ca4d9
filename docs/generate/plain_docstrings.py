"""Docstrings are plain text with code in double back-ticks, and formulas in plain notation."""

import re
from typing import Any

from sphinx.application import Sphinx

from generate.formulas import FormulaError, replaced


def setup(app: Sphinx) -> dict[str, Any]:
    """Escape the marks before napoleon looks for sections."""
    app.connect("autodoc-process-docstring", _escape, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _escape(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if isinstance(obj, type) and not obj.__module__.startswith("fedexp"):
        return  # the docstring of an imported class
    try:
        lines[:] = _escaped("\n".join(lines)).split("\n")
    except FormulaError as error:
        raise FormulaError(f"{name}: {error}") from None
    if what in ("data", "attribute", "property"):
        lines.insert(0, "")  # napoleon would read a colon in the first line as a type's end


def _escaped(text: str) -> str:
    parts = re.split(r"(``[^`]*``)", text)
    text = "".join(
        part if part.startswith("``") else replaced(part, ":math:`{}`".format, _without_marks)
        for part in parts
    )
    return re.sub(r": ([A-Z])\.$", r": \\\1.", text, flags=re.M)  # "C." would be a list's item


def _without_marks(text: str) -> str:
    """Text with the signs escaped that Sphinx would read as marks."""
    return re.sub(r"(?<=\S)([*|])|([*|])(?=\S)", r"\\\g<0>", text)
