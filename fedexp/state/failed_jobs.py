"""The jobs of a sweep that failed since its last start, in a file each in the sweep's folder.

The folder of a failed job does not tell: a job that is refused because its folder holds another run
leaves that run as it is.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path

_FOLDER = ".failed"


def record(sweep: Path, number: int, job: Path) -> None:
    """Record that the sweep's job with this number and folder has failed.

    Without room on the disk there is no record, so that the other jobs go on.
    """
    records = sweep / _FOLDER
    with suppress(OSError):  # the log names the failure anyway
        records.mkdir(exist_ok=True)
        (records / str(number)).write_text(os.path.relpath(job, sweep), encoding="utf-8")


def take(sweep: Path) -> set[Path]:
    """The folders of the recorded jobs, whose records are removed."""
    records = sweep / _FOLDER
    if not records.is_dir():
        return set()
    found = {sweep / each.read_text(encoding="utf-8") for each in records.iterdir()}
    shutil.rmtree(records)
    return found
