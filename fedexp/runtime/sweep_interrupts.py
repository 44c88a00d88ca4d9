"""Ctrl-C and SIGTERM in a sweep whose jobs share several processes (``hydra/launcher=joblib``).

joblib kills its processes at a Ctrl-C. With this module each running job finishes and saves its
round, waiting jobs do not start, and then the sweep ends like a single run. The jobs also end like
this if the parent is killed.
"""

import _thread
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType

from fedexp.distributed.parent import ORPHANED, follow_parent, parent_has_ended
from fedexp.errors import Interrupted
from fedexp.runtime.interrupts import NOTICE, exit_on_interrupt, in_worker
from fedexp.runtime.limits import STOPPING, stop_sweep

_BLOCKED = {signal.SIGINT, *STOPPING}


class _State:
    """The interrupts of this process, counted here because Hydra works with copies of callbacks.

    Attributes:
        interrupts: in the parent, the number of Ctrl-Cs.
        interrupted: in a worker, whether one of its jobs was interrupted.
    """

    interrupts = 0
    interrupted = False


def block_interrupts() -> None:
    """Block Ctrl-C and the signals in STOPPING in the parent of a sweep until its jobs are done.

    A terminal or SLURM sends these signals to every process. A signal to the parent, or to a worker
    that is idle or starting, would end all workers. So the parent blocks the signals, and the
    workers inherit the block. Each job unblocks Ctrl-C and SIGTERM (``unblock_interrupts``). The
    third Ctrl-C also interrupts the parent. At a signal in STOPPING the parent stops the sweep.
    """
    resource_tracker.ensure_running()  # a later start would unblock SIGINT and SIGTERM
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    threading.Thread(target=_count_interrupts, daemon=True).start()


def end_interrupted_sweep(folder: Path) -> None:
    """Exit with code 130 and one line if Ctrl-C was pressed during the sweep in ``folder``."""
    if _State.interrupts:
        with exit_on_interrupt(folder):
            raise Interrupted(signal.SIGINT)


def _count_interrupts() -> None:
    """Receive the blocked signals: count each Ctrl-C, stop the sweep at a signal in STOPPING."""
    while True:
        received = signal.sigwait(_BLOCKED)
        if received in STOPPING:
            stop_sweep(signal.Signals(received).name)
            continue
        _State.interrupts += 1
        if _State.interrupts == 1:
            os.write(2, NOTICE)
        if _State.interrupts > 2:
            _thread.interrupt_main()


@contextmanager
def unblock_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt the with-block; a Ctrl-C that was blocked before interrupts it at once.

    In a worker, SIGTERM also interrupts the block, and so does ``ORPHANED``, the signal that the
    parent has ended. A worker without a job ends together with its parent.
    """
    unblocked, handlers = {signal.SIGINT}, {}
    if in_worker():
        follow_parent()
        unblocked |= {signal.SIGTERM, ORPHANED}
        handlers = {each: signal.signal(each, _interrupt) for each in (signal.SIGTERM, ORPHANED)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for each, handler in handlers.items():
            signal.signal(each, handler)
        if in_worker():
            follow_parent(signal.SIGKILL)  # all other signals are blocked now


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(signal.Signals(number))


def record_interrupt() -> None:
    """Record that a job of this worker was interrupted."""
    _State.interrupted = True


def was_interrupted() -> bool:
    """Whether no job may start: the sweep or a job was interrupted, or the parent has ended."""
    if in_worker():
        follow_parent()
    return _State.interrupted or _State.interrupts > 0 or parent_has_ended()
