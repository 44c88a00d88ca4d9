"""Plain text of docstrings and comments as Markdown."""

import inspect
import re
from collections.abc import Iterable, Sequence

from generate.formulas import FormulaError, replaced

_SECTIONS = ("Args:", "Attributes:", "Returns:", "Raises:")
_SPECIAL = re.compile(r"([\\*_<>\[\]#|~$^{}`])")


def escape(text: str) -> str:
    """Plain text as Markdown; what stands in double or single back-ticks becomes code.

    Raises FormulaError if a formula in it cannot be read.
    """
    parts = re.split(r"(``[^`]+``|`[^`]+`)", text)
    return "".join(
        f"`{part.strip('`')}`" if part.startswith("`") else _typeset(part) for part in parts
    )


def checked(text: str, file: str) -> str:
    """The text itself; raises FormulaError with the file's name if a formula cannot be read."""
    try:
        escape(text)
    except FormulaError as error:
        raise FormulaError(f"{file}: {error}") from None
    return text


def _typeset(text: str) -> str:
    """Text without code as Markdown, with its formulas as LaTeX."""
    return replaced(text, "${}$".format, lambda other: _SPECIAL.sub(r"\\\1", other))


def code(text: str) -> str:
    """Text as code in a Markdown table."""
    return "`{}`".format(text.replace("|", "\\|")) if text else ""


def table(header: Sequence[str], rows: Iterable[Sequence[str]], classes: str = "") -> str:
    """A Markdown table; a cell with a line break would end it."""
    lines = [f"{{.{classes}}}"] if classes else []
    lines += [_row(header), _row("---" for _ in header), *map(_row, rows)]
    return "\n".join(lines) + "\n"


def prose(docstring: str) -> str:
    """The paragraphs of a docstring before its sections (``Args:`` and so on), as Markdown."""
    kept: list[str] = []
    if not docstring:
        return ""
    for paragraph in inspect.cleandoc(docstring).split("\n\n"):
        if paragraph.startswith(_SECTIONS):
            break
        kept.append(_paragraph(paragraph))
    return "\n\n".join(kept)


def sentence(text: str) -> str:
    """The first sentence of a comment, for a list."""
    return re.split(r"(?<=[a-z0-9)$])[.] (?=[A-Z])", text, maxsplit=1)[0].removesuffix(".")


def _paragraph(text: str) -> str:
    lines = text.splitlines()
    is_indented = all(line.startswith("    ") for line in lines)
    if is_indented and "$" in text:
        rows = "\n\n".join(escape(line.strip()) for line in lines)
        return f":::{{div}} formulas\n{rows}\n:::"
    if is_indented:
        return "```text\n{}\n```".format("\n".join(line[4:] for line in lines))
    bullets = "".join(
        f"\n{line}" if line.startswith("* ") else f" {line.strip()}" for line in lines
    )
    return "\n".join(
        f"* {escape(line[2:])}" if line.startswith("* ") else escape(line)
        for line in bullets.strip().splitlines()
    )


def _row(cells: Iterable[str]) -> str:
    return "| {} |".format(" | ".join(cells))
