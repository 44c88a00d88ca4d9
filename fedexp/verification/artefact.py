"""Checks an artefact: the digests of its files, its runs and its report."""

import json
import os
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

from fedexp.drawing.texts import printable
from fedexp.errors import DAMAGED, InputError, readable
from fedexp.reporting.runs import read_runs
from fedexp.reporting.sources import file_digest
from fedexp.state.run_folder import read_small_file
from fedexp.tracking.origin import read_origins
from fedexp.verification.archive import unpack
from fedexp.verification.pack import CODE, MANIFEST, REPORT, RUNS
from fedexp.verification.report import verify_report
from fedexp.verification.run import Ways
from fedexp.verification.sample import verify_runs
from fedexp.verification.verdict import Outcome, Verdict


def verify_archive(path: Path, ways: Ways) -> list[Verdict]:
    """Unpack an artefact, with ``ways.to`` into its folder ``artefact``, and check it."""
    with TemporaryDirectory() as temporary:
        folder = (ways.to or Path(temporary)) / "artefact"
        unpack(path, folder)
        return verify_artefact(folder, ways, printable(str(path)))


def verify_artefact(folder: Path, ways: Ways, shown: str) -> list[Verdict]:
    """Check an unpacked artefact; ``shown`` is its name. Raises InputError if it is none."""
    with chdir(folder):
        wrong = [*_wrong_files(shown), *_wrong_code()]
        has_report = Path(REPORT).exists()
        wrong += [] if has_report else [f"{REPORT}: is missing"]
        outcome = Outcome.DIFFERS if wrong else Outcome.SAME
        line = "files have changed since it was packed" if wrong else "its files are as packed"
        found = [Verdict(shown, outcome, line, wrong)]
        if has_report:
            found.append(verify_report(Path(REPORT), within=Path()))
        return [*found, *verify_runs(Path(RUNS), ways)]


def _wrong_files(shown: str) -> Iterator[str]:
    """A line for each file that is missing, added, changed or a link. Raises InputError."""
    with readable(f"{shown}: {MANIFEST}", *DAMAGED):
        digests = dict(json.loads(read_small_file(Path(MANIFEST)))["files"])
    for place, folders, names in os.walk("."):
        for name in (*folders, *names):
            path = Path(place, name)
            if path.is_symlink():
                raise InputError(f"{shown}: {printable(str(path))}: is a link")
            if name in names and path.as_posix() not in digests and path != Path(MANIFEST):
                yield f"{printable(str(path))}: was added"
    for name, digest in digests.items():
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{shown}: {printable(name)}: a file may not have this name")
        if not path.is_file():
            yield f"{printable(name)}: is missing"
        elif file_digest(path) != digest:
            yield f"{printable(name)}: has changed"


def _wrong_code() -> Iterator[str]:
    """A line for each file of code that is not the code of the runs."""
    runs, _ = read_runs([Path(RUNS)])
    starts = [start for run in runs for start in read_origins(run.folder)]
    for path in sorted(Path(CODE).rglob("*.py")):
        name, text = path.relative_to(CODE).as_posix(), path.read_bytes().decode(errors="replace")
        texts = {start["code"]["own"].get(name) for start in starts}
        if text not in texts:
            yield f"{printable(str(path))}: is not the code of the runs"
