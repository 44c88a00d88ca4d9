"""Checks the entries of a leaderboard, which are artefacts from outside."""

from dataclasses import replace
from pathlib import Path

from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.reporting.leaderboard.entries import Entry
from fedexp.reporting.runs import run_folders
from fedexp.reporting.sources import file_digest
from fedexp.verification.artefact import verify_archive
from fedexp.verification.pack import RUNS
from fedexp.verification.run import Ways
from fedexp.verification.verdict import Outcome, worst


def checked_entries(
    folder: Path, ways: Ways, by: str, unpacked: Path
) -> tuple[list[Entry], list[str]]:
    """Check each artefact in ``folder``.

    Args:
        folder: the folder with the zip files.
        ways: how to check.
        by: who checks.
        unpacked: a folder for their contents.

    Returns:
        The entries whose numbers were found again, and lines about the others.

    Raises:
        InputError: there is no zip file in the folder.
    """
    found, problems = [], []
    paths = sorted(folder.glob("*.zip"))
    if not paths:
        raise InputError(f"--entries {folder}: has no zip file")
    for path in paths:
        place = unpacked.absolute() / path.stem
        try:
            verdicts = verify_archive(path.absolute(), replace(ways, to=place))
        except InputError as error:
            problems.append(f"left out: {error}")
            continue
        name, runs = printable(path.name), place / "artefact" / RUNS
        if worst(verdicts) != Outcome.SAME:
            wrong = [each for each in verdicts if each.outcome != Outcome.SAME]
            lines = [f"{each.place}: {': '.join([each.line, *each.details[:1]])}" for each in wrong]
            problems.append(f"{name}: left out: {'; '.join(lines)}")
            continue
        every, trained = len(run_folders(runs)[0]), len(verdicts) - 2
        checked = f"files, report, {trained} of {every} runs: {verdicts[-1].line}"
        found.append(Entry(name, file_digest(path), runs, checked, by))
    return found, problems
