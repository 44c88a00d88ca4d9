"""Lets the worker processes of a sweep end with their parent, even if the parent is killed."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # Linux's sys/prctl.h


class _State:
    """The parent of this worker; None in any other process."""

    parent: int | None = None


def follow_parent() -> None:
    """In a worker: remember the parent; on Linux, SIGTERM will arrive when the parent ends."""
    if _State.parent is None:
        _State.parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def parent_has_ended() -> bool:
    """Whether the parent of this worker has ended; False in a process that is no worker."""
    return _State.parent not in (None, os.getppid())
