"""Ends the workers of a sweep and the ranks of a run when their parent ends or is killed."""

import ctypes
import multiprocessing
import os
import signal
import sys

ORPHANED = signal.SIGUSR2
"""The signal that a child gets when its parent ends. Linux may send it once for each thread of the
parent. A second SIGTERM would stop a run before its round is saved; a second SIGUSR2 does nothing.
"""

_PR_SET_PDEATHSIG = 1  # Linux's sys/prctl.h


class _State:
    """Whether this process is a worker of a sweep or a rank of a run."""

    follows = False


def follow_parent(end: signal.Signals = ORPHANED) -> None:
    """In a worker or rank, ask Linux for the signal ``end`` when the parent ends.

    If the parent has ended already, this process gets the signal at once.
    """
    _State.follows = True
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, end)
    if parent_has_ended():
        signal.raise_signal(end)


def parent_has_ended() -> bool:
    """Whether the parent of this worker or rank has ended; False in any other process."""
    parent = multiprocessing.parent_process() if _State.follows else None
    if parent is None:
        return False
    try:
        return not parent.is_alive()
    except ValueError:  # a worker of joblib has no pipe to its parent
        return parent.pid != os.getppid()
