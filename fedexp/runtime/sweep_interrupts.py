"""Ctrl-C in a sweep whose jobs share several processes (``hydra/launcher=joblib``).

joblib kills its processes at a Ctrl-C. Here each job ends its round and saves it, those that wait
do not begin, and then the sweep ends as a single run does.
"""

import _thread
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

from fedexp.errors import Interrupted
from fedexp.runtime.interrupts import NOTICE, plain_interrupt

_CTRL_C = {signal.SIGINT}
_MASKS = hasattr(signal, "pthread_sigmask")  # a POSIX system


class _State:
    """What this process knows of the sweep; Hydra copies its callbacks, so it is not kept there.

    Attributes:
        asked: in the parent, how often Ctrl-C has come.
        interrupted: in a worker, whether a job of it was.
    """

    asked = 0
    interrupted = False


def hold_back_interrupts() -> None:
    """Block Ctrl-C in the parent of a sweep until its jobs are done.

    A terminal sends it to every process. To the parent, and to workers that are idle or starting,
    it would be the end of the pool; so it is blocked here, workers are started with it blocked, and
    each job unblocks it (``let_in``). A third one interrupts the parent, too.
    """
    if _MASKS:
        resource_tracker.ensure_running()  # its start would end the blocking
        signal.pthread_sigmask(signal.SIG_BLOCK, _CTRL_C)
        threading.Thread(target=_watch, daemon=True).start()


def end_interrupted_sweep(folder: Path) -> None:
    """Exit with code 130 and one line if Ctrl-C was pressed during the sweep in ``folder``."""
    if _State.asked:
        with plain_interrupt(folder):
            raise Interrupted(signal.SIGINT)


def _watch() -> None:
    """Take in what the main thread does not."""
    while True:
        signal.sigwait(_CTRL_C)
        _State.asked += 1
        if _State.asked == 1:
            os.write(2, NOTICE)
        if _State.asked > 2:
            _thread.interrupt_main()


@contextmanager
def let_in() -> Iterator[None]:
    """Ctrl-C comes through as long as the block runs, and first of all one that was held back."""
    if not _MASKS:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _CTRL_C)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def note_interrupt() -> None:
    """A job of this worker was interrupted."""
    _State.interrupted = True


def was_interrupted() -> bool:
    """Whether a job of this worker was interrupted, so that the sweep is over for it."""
    return _State.interrupted
