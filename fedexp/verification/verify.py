"""Checks whatever a path holds: runs, or a report."""

import random
from pathlib import Path

from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.reporting.runs import run_folders
from fedexp.reporting.sources import FILE_NAME as SOURCES
from fedexp.verification.report import verify_report
from fedexp.verification.run import Ways, verify_run
from fedexp.verification.verdict import Verdict


def verify(path: Path, ways: Ways) -> list[Verdict]:
    """Check the results at ``path``.

    Raises:
        InputError: there is nothing that can be checked.
    """
    if not path.exists():
        raise InputError(f"{printable(str(path))}: does not exist")
    if not path.is_dir():
        raise InputError(f"{printable(str(path))}: should be a folder of a run, sweep or report")
    if (path / SOURCES).is_file():
        return [verify_report(path)]
    return verify_runs(path, ways)


def verify_runs(path: Path, ways: Ways) -> list[Verdict]:
    """Check the run at ``path``, or ``ways.jobs`` of the runs below it, drawn by ``ways.seed``."""
    folders, _ = run_folders(path)
    if not folders:
        raise InputError(f"{printable(str(path))}: no run in it")
    drawn = random.Random(ways.seed).sample(folders, min(ways.jobs, len(folders)))
    kept = {each: ways.to / each.relative_to(path) if ways.to else None for each in folders}
    return [verify_run(each, ways, kept[each]) for each in folders if each in drawn]
