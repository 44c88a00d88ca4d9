"""Checks a report: every number is computed again from the folders of its runs."""

import csv
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import chdir
from itertools import zip_longest
from pathlib import Path
from typing import Any

from fedexp.drawing.texts import printable
from fedexp.errors import DAMAGED, InputError, readable
from fedexp.reporting.files import contents
from fedexp.reporting.runs import is_within
from fedexp.reporting.sources import FILE_NAME, file_digest, made_again
from fedexp.state.run_folder import read_small_file
from fedexp.verification.verdict import Outcome, Verdict

_PICTURE = re.compile(r"data:image/png;base64,[\w+/=]+")
_CELLS = {".md": r"(?<!\\)\|", ".tex": r"(?<!\\)&|\\\\", ".html": r"[<>]"}
"""Suffix of a file -> what divides the cells in its lines."""
_TEXTS = (".csv", *_CELLS)


def verify_report(folder: Path, within: Path | None = None) -> Verdict:
    """Check the report in ``folder`` against the runs that its ``sources.json`` names.

    If ``within`` is a folder, the runs must lie in it, and every text beside the report's files is
    checked, too.
    """
    place = printable(str(folder))
    try:
        with readable(folder / FILE_NAME, *DAMAGED):
            found = json.loads(read_small_file(folder / FILE_NAME))
            base, files = folder / found["from"], dict(found["files"])
            names = [name for name in files if Path(name).name == name and (folder / name).exists()]
            missing = [f"{printable(name)}: is missing" for name in files if name not in names]
            changed = [*missing, *_changed_sources(found["runs"], base)]
        if within:
            texts = (path.name for path in folder.iterdir() if path.suffix in _TEXTS)
            names += sorted({*texts} - files.keys())
        if found["arguments"] is None:
            raise InputError(f"{place}: is a report of a replay; make it again with fedexp-replay")
        with readable(folder / FILE_NAME, *DAMAGED):
            _check_places(found["arguments"]["read"]["paths"], base, within)
            wrong = list(_wrong_numbers(folder, found["arguments"], base, names))
        edited = [name for name in names if file_digest(folder / name) != files.get(name)]
    except InputError as error:
        return Verdict(place, Outcome.UNKNOWN, "cannot be compared", [printable(str(error))])
    if edited and not wrong:
        wrong = [f"{name}: has changed since it was written" for name in edited]
    if changed or wrong:
        numbers = (
            f"cells that do not follow from the runs: {len(wrong)}" if wrong else "sources changed"
        )
        return Verdict(place, Outcome.DIFFERS, numbers, [*changed, *map(printable, wrong)])
    count = len(found["runs"])
    runs = f"{count} run{'s' if count != 1 else ''}"
    return Verdict(place, Outcome.SAME, f"every number of {len(names)} files follows from {runs}")


def _check_places(paths: list[str], base: Path, within: Path | None) -> None:
    if within and not all(is_within(base / path, within) for path in paths):
        raise InputError(f"{FILE_NAME}: names runs outside of the artefact")


def _changed_sources(runs: list[Mapping[str, Any]], base: Path) -> Iterator[str]:
    """A line for each file of a run that is missing or has changed since the report was made."""
    for run in runs:
        for name, digest in run["files"].items():
            path = base / run["folder"] / name
            if not path.is_file():
                yield printable(f"{run['folder']}/{name}: is missing")
            elif file_digest(path) != digest:
                yield printable(f"{run['folder']}/{name}: has changed since the report was made")


def _wrong_numbers(
    folder: Path, arguments: Mapping[str, Any], base: Path, names: list[str]
) -> Iterator[str]:
    """A line for each cell of the report's files that differs when the report is made again."""
    written = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    with readable(base), chdir(base):
        again = contents(made_again(arguments), *arguments["write"])
    for name, text in written.items():
        if name not in again:
            yield f"{name}: is no file of this report"
            continue
        compare = _of_table if name.endswith(".csv") else _of_text
        yield from (f"{name}, {line}" for line in compare(name, text, again[name].decode()))


def _of_table(name: str, was: str, now: str) -> Iterator[str]:
    rows, others = (list(csv.reader(text.splitlines())) for text in (was, now))
    headings = rows[0] if rows else []
    none: list[str] = []
    for number, (row, other) in enumerate(zip_longest(rows, others, fillvalue=none), start=1):
        for column, (cell, computed) in enumerate(zip_longest(row, other, fillvalue="")):
            if cell != computed:
                heading = headings[column] if column < len(headings) else str(column)
                yield f"row {number}, {heading}: {cell or 'empty'}, but the runs give {computed}"


def _of_text(name: str, was: str, now: str) -> Iterator[str]:
    divider = _CELLS[Path(name).suffix]
    lines = (_PICTURE.sub("", text).splitlines() for text in (was, now))
    for number, pair in enumerate(zip_longest(*lines, fillvalue=""), start=1):
        cells = (re.split(divider, line) for line in pair)
        for cell, computed in zip_longest(*cells, fillvalue=""):
            if cell.strip() != computed.strip():
                said = cell.strip() or "nothing"
                yield f"line {number}: {said}, but the runs give {computed.strip() or 'nothing'}"
