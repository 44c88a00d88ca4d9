"""Ctrl-C and SIGTERM while a round is being trained."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from fedexp.distributed.launcher import start

NOTICE = b"\nfedexp: stopping when this round is done and saved; a second time stops at once\n"


class Interrupts:
    """Holds the first SIGINT or SIGTERM back as long as the block runs; a second acts at once.

    Does nothing outside the main thread, where Python allows no handlers.

    Args:
        announce: say what the first one will do.

    Attributes:
        asked: the signal that came, if one did.
    """

    asked: signal.Signals | None = None

    def __init__(self, announce: bool = True) -> None:
        self._announce = announce

    def __enter__(self) -> Self:
        self._before = {}
        if threading.current_thread() is threading.main_thread():
            for each in (signal.SIGINT, signal.SIGTERM):
                self._before[each] = signal.signal(each, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number)
        self.__exit__(None, None, None)
        if self._announce and not in_worker():  # else its parent has said it
            os.write(2, NOTICE)  # print may be what was interrupted


@contextmanager
def plain_interrupt(folder: Path) -> Iterator[None]:
    """A Ctrl-C is one line that says how to go on in ``folder``; so is a SIGTERM.

    Not in a worker, which its parent speaks for: there it stays a KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        if in_worker():
            raise
        how = f"add resume={folder} (or resume=auto) to the same command"
        print(f"fedexp: interrupted; to go on, {how}", file=sys.stderr)
        number = getattr(error, "signal", signal.SIGINT)
        raise SystemExit(128 + number) from None


def in_worker() -> bool:
    """Whether this process is one of those among which a sweep's jobs are shared out."""
    # The ranks of a run are processes, too, but are started as torchrun starts them.
    return multiprocessing.current_process().name != "MainProcess" and start().by == "user"
