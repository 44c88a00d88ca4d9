"""Writes a report to a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedexp.errors import InputError
from fedexp.reporting.csv import csv
from fedexp.reporting.html import html
from fedexp.reporting.latex import PREAMBLE, latex
from fedexp.reporting.markdown import escape, markdown
from fedexp.reporting.pictures import Picture, pictures
from fedexp.reporting.report import Report
from fedexp.state.atomic import write_atomically

FORMATS = ("md", "csv", "tex", "html", "pdf")
DEFAULTS = ("md", "csv", "tex", "html")
"""All formats except ``pdf``, because drawing as PDF takes as long as drawing as PNG."""


def write(
    report: Report, folder: Path, formats: Sequence[str] = DEFAULTS, every_figure: bool = False
) -> list[Path]:
    """Create ``folder`` and write the report into it; returns the written files except pictures.

    ``report.md`` and ``report.tex`` have all tables. ``report.html``, which needs no other file,
    has in place of the last, the table of runs, their warnings, commands and configs.
    ``<frame>.csv`` has the numbers of a data frame of ``report.frames``. ``figures/`` has the
    pictures as PNG and, if ``formats`` has ``pdf``, also as PDF. If ``csv`` is the only format,
    there are no pictures.

    Unless ``every_figure`` is true, extra pictures are not drawn, only named; see
    ``pictures.pictures``. ``report.problems`` gets a line for each picture that cannot be drawn.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # a file has the folder's name, or rights are missing
        raise InputError(f"--to {folder}: cannot be made ({error.strerror})") from None
    made = contents(report, formats, every_figure)
    write_contents(made, folder)
    return [folder / name for name in made if not name.startswith("figures/")]


def contents(
    report: Report, formats: Sequence[str] = DEFAULTS, every_figure: bool = False
) -> dict[str, bytes]:
    """The files that ``write`` writes: name in the folder -> content."""
    drawn, left_out, problems = (
        pictures(report, every_figure, "pdf" in formats) if {*formats} - {"csv"} else ([], [], [])
    )
    report.problems.extend(line for line in problems if line not in report.problems)
    not_drawn = f"Not drawn: {', '.join(left_out)}; --figures all draws them" if left_out else ""
    found: dict[str, bytes] = {}
    for picture in drawn:
        found[f"figures/{picture.name}.png"] = picture.png
        if picture.pdf:
            found[f"figures/{picture.name}.pdf"] = picture.pdf
    if "md" in formats:
        found["report.md"] = _markdown(report, drawn, not_drawn).encode()
    if "tex" in formats:
        found["report.tex"] = _latex(report).encode()
    if "html" in formats:
        found["report.html"] = html(report, drawn, not_drawn).encode()
    if "csv" in formats:
        found |= {
            f"{name}.csv": csv(frame) for name, frame in report.frames.items() if not frame.empty
        }
    return found


def write_contents(contents: Mapping[str, bytes], folder: Path) -> None:
    """Write files, name in ``folder`` -> content. Raises InputError if one cannot be written."""
    try:
        for name, content in contents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, content)
    except OSError as error:
        raise InputError(f"--to {folder}: cannot be written ({error.strerror})") from None


def _latex(report: Report) -> str:
    heading = [f"% {line}" for line in report.heading]
    return PREAMBLE + "\n".join([*heading, *map(latex, report.tables())])


def _markdown(report: Report, drawn: Sequence[Picture], not_drawn: str) -> str:
    heading = [f"{escape(line)}\n" for line in report.heading]
    parts = ["# Report\n", *heading, *map(markdown, report.tables())]
    titles = [(escape(each.title), each.name) for each in drawn]
    parts += [f"### {title}\n\n![{title}](figures/{name}.png)\n" for title, name in titles]
    parts += [f"{not_drawn}\n"] if not_drawn else []
    if report.problems:
        lines = "".join(f"* {escape(each)}\n" for each in report.problems)
        parts += [f"### Not in this report\n\n{lines}"]
    return "\n".join(parts)
