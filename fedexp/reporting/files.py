"""Writes a report to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedexp.reporting.figures import Picture, pictures
from fedexp.reporting.html import html
from fedexp.reporting.latex import latex
from fedexp.reporting.markdown import markdown
from fedexp.reporting.report import Report
from fedexp.state.atomic import write_atomically

FORMATS = ("md", "csv", "tex", "html")
_FRAMES = ("values", "results", "differences", "paper", "curves")


def write(report: Report, folder: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the report into ``folder``, which is made; returns the files.

    ``report.md``, ``report.tex`` and ``report.html`` have all tables; ``<frame>.csv`` all numbers;
    ``figures/`` each picture as PNG and PDF, unless only ``csv`` is asked for. The page needs no
    other file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures(report) if set(formats) - {"csv"} else []
    contents: dict[str, bytes] = {}
    for picture in drawn:
        contents[f"figures/{picture.name}.png"] = picture.png
        contents[f"figures/{picture.name}.pdf"] = picture.pdf
    if "md" in formats:
        contents["report.md"] = _markdown(report, drawn).encode()
    if "tex" in formats:
        contents["report.tex"] = "\n".join(map(latex, report.tables())).encode()
    if "html" in formats:
        contents["report.html"] = html(report, drawn).encode()
    if "csv" in formats:
        frames = {name: getattr(report, name) for name in _FRAMES}
        contents |= {
            f"{name}.csv": frame.to_csv(index=False).encode()
            for name, frame in frames.items()
            if not frame.empty
        }
    if drawn:
        (folder / "figures").mkdir(exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents if not name.startswith("figures/")]


def _markdown(report: Report, drawn: Sequence[Picture]) -> str:
    parts = ["# Report\n", *map(markdown, report.tables())]
    parts += [f"### {each.title}\n\n![{each.title}](figures/{each.name}.png)\n" for each in drawn]
    if report.problems:
        parts += ["### Not in this report\n\n" + "".join(f"* {p}\n" for p in report.problems)]
    return "\n".join(parts)
