"""Ends a run, or a whole sweep, before its last round: at a time limit or a signal.

The processes of a sweep share one deadline, and one file in the sweep's folder. Any process can end
all of them by writing this file. Worker processes and ranks inherit the deadline and the file's
path in their environment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from fedexp.distributed.parent import parent_has_ended

STOPPING = signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2
"""Signals with which SLURM announces the end of a job; submitit makes SLURM send SIGUSR2."""

_DEADLINE = "FEDEXP_DEADLINE"  # seconds since the epoch
_MINUTES = "FEDEXP_MINUTES"
_STOP_FILE = "FEDEXP_STOP_FILE"


class Sweep:
    """The last sweep of this process.

    Attributes:
        has_left_jobs: whether it stopped before all of its jobs had started.
    """

    has_left_jobs = False


class Clock:
    """Measures the time of a run, and tells when the run has to end.

    Args:
        minutes: the time limit, counted from the creation of the clock; None for no limit. For a
            job of a sweep the time limit of the sweep counts instead.
    """

    def __init__(self, minutes: float | None) -> None:
        self._minutes = minutes
        self._start, self._earlier = time.monotonic(), 0.0

    def add(self, seconds: float) -> None:
        """Add the seconds before the run was resumed; the time limit ignores them."""
        self._earlier += seconds

    @property
    def seconds(self) -> float:
        """The run's time so far in seconds, including its time before it was resumed."""
        return self._earlier + time.monotonic() - self._start

    def reason_to_stop(self) -> str | None:
        """The reason to end the run after this round; None to continue."""
        if parent_has_ended():
            return signal.SIGTERM.name
        if is_limited_sweep():
            return reason_to_stop_sweep()
        if self._minutes is not None and time.monotonic() - self._start >= 60 * self._minutes:
            return f"limits.minutes={self._minutes:g}"
        return None


@contextmanager
def limited_sweep(folder: Path, minutes: float | None) -> Iterator[None]:
    """In this block, all jobs of the sweep in ``folder`` end at the time limit or at a signal."""
    path = folder.resolve() / ".stop"
    path.unlink(missing_ok=True)
    Sweep.has_left_jobs = False
    os.environ[_STOP_FILE] = str(path)
    if minutes is not None:
        os.environ[_DEADLINE] = str(time.time() + 60 * minutes)
        os.environ[_MINUTES] = f"{minutes:g}"
    before = {each: signal.signal(each, _stop_at_signal) for each in STOPPING}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
        for name in (_STOP_FILE, _DEADLINE, _MINUTES):
            os.environ.pop(name, None)
        path.unlink(missing_ok=True)


def reason_to_stop_sweep() -> str | None:
    """The reason to end this process's sweep; None without a sweep or without a reason."""
    if (name := os.environ.get(_STOP_FILE)) is None:
        return None
    if _DEADLINE in os.environ and time.time() >= float(os.environ[_DEADLINE]):
        return f"limits.minutes={os.environ[_MINUTES]}"
    try:
        return Path(name).read_text(encoding="utf-8") or None
    except FileNotFoundError:
        return None


def is_limited_sweep() -> bool:
    """Whether this process belongs to a sweep, whose time limit is that of all its jobs."""
    return _STOP_FILE in os.environ


def stop_sweep(reason: str) -> None:
    """End the jobs of this process's sweep, if any, each after its current round.

    Does nothing if the sweep's process has ended: another sweep may be using the folder by now.
    """
    if (name := os.environ.get(_STOP_FILE)) and not parent_has_ended():
        Path(name).write_text(reason, encoding="utf-8")


def end_job_or_sweep(reason: str) -> None:
    """End the sweep whose job has stopped, or only this job if a cluster's queue stopped it.

    In a cluster's queue each job has its own time limit. If only this job got a signal there, the
    signal was held back until the round was saved. Now it is raised again for submitit, which
    queues the job again and exits. submitit ignores SIGTERM; then the job exits here without a
    result, because SLURM may have queued it again.
    """
    alone = reason in signal.Signals.__members__ and reason_to_stop_sweep() is None
    if alone and "SUBMITIT_EXECUTOR" in os.environ:
        signal.raise_signal(signal.Signals[reason])
        sys.exit(128 + signal.Signals[reason])
    else:
        stop_sweep(reason)


def _stop_at_signal(number: int, frame: FrameType | None) -> None:
    stop_sweep(signal.Signals(number).name)


def how_to_go_on(reason: str, done: str, folder: Path) -> str:
    """The last line that a stopped run or sweep prints, which says how to resume it."""
    return f"{reason}: {done}; to go on, add resume={folder} (or resume=auto) to the same command"
