"""Checks some of the runs of a sweep."""

import random
from pathlib import Path

from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.reporting.runs import run_folders
from fedexp.verification.run import Ways, verify_run
from fedexp.verification.verdict import Verdict

_LONG = 4
"""Lines of a verdict beyond which equal lines of later runs are not repeated."""


def verify_runs(path: Path, ways: Ways) -> list[Verdict]:
    """Check the run at ``path``, or ``ways.jobs`` of the runs below it, drawn by ``ways.seed``.

    Raises InputError if there is no run.
    """
    folders, _ = run_folders(path)
    if not folders:
        raise InputError(f"{printable(str(path))}: no run in it")
    drawn = random.Random(ways.seed).sample(folders, min(ways.jobs, len(folders)))
    found: list[Verdict] = []
    for folder in (each for each in folders if each in drawn):
        keep = ways.to / folder.relative_to(path) if ways.to else None
        verdict, first = verify_run(folder, ways, keep), next(iter(found), None)
        if first and len(verdict.details) >= _LONG and verdict.details == first.details:
            details = [f"as for {first.place}"]
            verdict = Verdict(verdict.place, verdict.outcome, verdict.line, details)
        found.append(verdict)
    return found
