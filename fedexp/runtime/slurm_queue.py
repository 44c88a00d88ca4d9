"""What SLURM says about the waiting jobs of a sweep."""

import logging
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path
from threading import Event, Thread

LOGGER = logging.getLogger(__name__)

_ORDINARY = ("", "None", "Resources", "Priority")
"""Reasons for which a job waits that need no word: it will start by itself."""

_POLL_S = 30.0
_COMMAND = ("squeue", "--noheader", "--states=PENDING", "--format=%i %r")
"""Asks for all of the user's jobs, because SLURM refuses a list with a job that it has forgotten.
"""

_SUBMITIT = "submitit"


@contextmanager
def watch_queue(submitted: Path, poll_s: float = _POLL_S) -> Iterator[None]:
    """While the block waits for the jobs of a sweep, say once each why SLURM holds them back.

    Args:
        submitted: submitit's folder, which has a folder for each job, named by the job's number.
        poll_s: seconds between two questions to SLURM.
    """
    done, quiet = Event(), _OnceFilter()
    logging.getLogger(_SUBMITIT).addFilter(quiet)
    Thread(target=_watch, args=[submitted, poll_s, done], daemon=True).start()
    try:
        yield
    finally:
        done.set()
        logging.getLogger(_SUBMITIT).removeFilter(quiet)


def held(lines: Iterable[str]) -> dict[str, list[str]]:
    """Reason -> the jobs that wait for it, from lines such as ``12_[0-3] PartitionTimeLimit``."""
    found: dict[str, list[str]] = {}
    for line in lines:
        job, _, reason = line.partition(" ")
        reason = reason.strip().strip("()")
        if job and reason not in _ORDINARY:
            found.setdefault(reason, []).append(job)
    return found


def _watch(submitted: Path, poll_s: float, done: Event) -> None:
    said: set[str] = set()
    while not done.wait(poll_s):
        own = {_array(path.name) for path in submitted.glob("[0-9]*")}
        try:
            asked = [*_COMMAND, f"--user={getuser()}"]
            answer = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        lines = (line.strip() for line in answer.stdout.splitlines())
        for reason, waiting in held(line for line in lines if _array(line) in own).items():
            if reason not in said:
                said.add(reason)
                LOGGER.warning("SLURM holds %s: %s%s", ", ".join(waiting), reason, _advice(reason))


def _array(job: str) -> str:
    """The number of a job or its array, from ``12_[0-3] Priority`` or ``12_0``."""
    return job.partition(" ")[0].partition("_")[0]


def _advice(reason: str) -> str:
    if reason == "PartitionTimeLimit":
        return "; hydra.launcher.timeout_min is more than hydra.launcher.partition allows"
    return ""


class _OnceFilter(logging.Filter):
    """Lets submitit's warning that SLURM's accounting fails through once; it comes at each poll."""

    _has_warned = False

    def filter(self, record: logging.LogRecord) -> bool:
        if "sacct error" not in record.getMessage():
            return True
        is_first, self._has_warned = not self._has_warned, True
        return is_first
