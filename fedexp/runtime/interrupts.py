"""Handling of Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 during a round."""

import atexit
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

from fedexp.distributed import launcher
from fedexp.runtime.limits import STOPPING

NOTICE = b"\nfedexp: stopping when this round is done and saved; a second time stops at once\n"


class Interrupts:
    """A context manager that holds back the first SIGINT, SIGTERM, SIGUSR1 or SIGUSR2.

    The first signal is stored in ``received``, and the with-block goes on. A second SIGINT or
    SIGTERM acts as without the with-block. A second SIGUSR1 or SIGUSR2 does nothing. Outside the
    main thread, where Python allows no signal handlers, no signal is held back.

    Args:
        announce: whether to print a notice at the first signal.

    Attributes:
        received: the signal that was held back; None if there was none.
    """

    received: signal.Signals | None = None

    def __init__(self, announce: bool = True) -> None:
        self._announce = announce

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, *STOPPING):
                self._before[each] = signal.signal(each, self._handle)
        return self

    def __exit__(self, *exception: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received:
            return
        self.received = signal.Signals(number)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, self._before[each])
        if self._announce and not in_worker():  # a worker's parent prints the notice
            os.write(2, NOTICE)  # print is not safe in a signal handler


@contextmanager
def exit_on_interrupt(folder: Path) -> Iterator[None]:
    """On Ctrl-C or SIGTERM, print in one line how to resume the run in ``folder``, and exit.

    While Python exits, a further Ctrl-C ends the process at once and without a traceback. In a
    worker the KeyboardInterrupt passes through; the worker's parent prints and exits.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if in_worker():
            raise
        how = f"add resume={folder} (or resume=auto) to the same command"
        print(f"fedexp: interrupted; to go on, {how}", file=sys.stderr)
        atexit.register(_end_at_next_interrupt)
        number = getattr(error, "signal", signal.SIGINT)
        raise SystemExit(128 + number) from None


def _end_at_next_interrupt() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # the parent of a sweep blocks it


def in_worker() -> bool:
    """Whether this process is a worker of a sweep with several jobs at a time."""
    # A run's ranks are child processes, too, but have torchrun's environment variables.
    return (
        multiprocessing.current_process().name != "MainProcess"
        and launcher.this_process().started_by == "user"
    )
