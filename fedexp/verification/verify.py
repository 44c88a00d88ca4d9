"""Checks whatever a path holds: runs, a report, an artefact, or an app for Flower."""

from pathlib import Path

from fedexp.drawing.texts import printable
from fedexp.errors import InputError
from fedexp.reporting.sources import FILE_NAME as SOURCES
from fedexp.verification.artefact import verify_archive, verify_artefact
from fedexp.verification.flower import APP, verify_app
from fedexp.verification.pack import MANIFEST
from fedexp.verification.report import verify_report
from fedexp.verification.run import Ways
from fedexp.verification.sample import verify_runs
from fedexp.verification.verdict import Verdict


def verify(path: Path, ways: Ways) -> list[Verdict]:
    """Check the results at ``path``.

    Raises:
        InputError: there is nothing that can be checked.
    """
    shown = printable(str(path))
    if path.is_file():
        return verify_archive(path, ways)
    if not path.is_dir():
        raise InputError(f"{shown}: {'is no file' if path.exists() else 'does not exist'}")
    if (path / MANIFEST).is_file():
        return verify_artefact(path, ways, shown)
    if (path / APP).is_file():
        return verify_app(path, ways)
    if (path / SOURCES).is_file():
        return [verify_report(path)]
    return verify_runs(path, ways)
