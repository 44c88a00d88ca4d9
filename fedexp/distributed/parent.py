"""Lets the workers of a sweep and the ranks of a run end with their parent, even a killed one."""

import ctypes
import multiprocessing
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # Linux's sys/prctl.h


class _State:
    """The parent of this worker or rank; None in any other process."""

    parent: int | None = None


def follow_parent(end: signal.Signals = signal.SIGTERM) -> None:
    """In a worker or rank: remember the parent and, on Linux, ask for a signal when it ends.

    If the parent has ended already, this process gets the signal now.
    """
    starter = multiprocessing.parent_process()
    if starter is None or starter.pid is None:
        return
    through_server = starter.pid != os.getppid() and _exists(starter.pid)
    _State.parent = os.getppid() if through_server else starter.pid
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, end)
    if parent_has_ended():
        signal.raise_signal(end)


def parent_has_ended() -> bool:
    """Whether the parent of this worker or rank has ended; False in any other process."""
    return _State.parent not in (None, os.getppid())


def _exists(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is a Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
