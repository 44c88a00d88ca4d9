"""The report as one HTML page that needs no other file."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader

from fedexp.reporting.labels import show, text
from fedexp.reporting.pictures import Picture
from fedexp.reporting.report import Report

_TEMPLATE = "page.html.jinja"
_NUMBER = re.compile(r"(?:>= )?([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?! of )(?:\s|$)")
_BROAD = 800
"""Width in pixels; a phone scrolls wider pictures instead of shrinking them."""


def html(report: Report, drawn: Sequence[Picture], not_drawn: str = "") -> str:
    """The page: tables that a click sorts, pictures, and each run's config, which a click unfolds.

    Args:
        report: the report with its runs and tables.
        drawn: the pictures.
        not_drawn: a sentence about the pictures that were left out; may be empty.
    """
    loader = PackageLoader("fedexp.reporting", ".")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["leading_number"] = leading_number
    environment.tests["not_run"] = lambda note: note.startswith("Not run: ")
    *tables, runs = report.tables()
    return environment.get_template(_TEMPLATE).render(
        heading=report.heading,
        tables=tables,
        pictures=[
            {
                "title": each.title,
                "png": b64encode(each.png).decode(),
                "is_broad": _width(each.png) > _BROAD,
            }
            for each in drawn
        ],
        not_drawn=not_drawn,
        runs=_runs(report),
        notes=runs.notes,
        problems=report.problems,
    )


def leading_number(cell: str) -> str | None:
    """The number by which a cell is sorted, such as 0.91 for ``0.91 ± 0.02``; None without number.

    ``2 of 3`` is a count of seeds and therefore gives None.
    """
    found = _NUMBER.match(cell)
    return found[1] if found else None


def _width(png: bytes) -> int:
    """The width of a PNG in pixels, from its header."""
    return int.from_bytes(png[16:20], "big")


def _runs(report: Report) -> list[dict[str, Any]]:
    """For each run: label, seed, finished rounds, folder, command, differing values and config."""
    differing = differing_keys([run.values for run in report.runs])
    return [
        {
            "label": text(label),
            "seed": run.seed,
            "rounds": run.progress,
            "folder": run.place,
            "command": " ".join(run.overrides),
            "differences": [(key, show(run.values[key])) for key in differing if key in run.values],
            "config": "\n".join(
                f"{key}={show(value)}" for key, value in run.values.items() if key != "paper"
            ),
        }
        for run, label in zip(report.runs, report.labels, strict=True)
    ]


def differing_keys(values: Sequence[dict[str, Any]]) -> list[str]:
    """The config keys whose values differ between runs, in order of first appearance.

    ``paper`` is left out.

    Args:
        values: for each run, key -> value. A key that some runs lack counts as different.
    """
    keys = dict.fromkeys(key for each in values for key in each)
    return [
        key
        for key in keys
        if key != "paper" and len({repr(each.get(key, "(absent)")) for each in values}) > 1
    ]
