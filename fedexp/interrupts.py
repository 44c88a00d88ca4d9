"""Ctrl-C and SIGTERM while a round is being trained."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

_NOTICE = b"\nfedexp: stopping when this round is done and saved; a second time stops at once\n"


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and all that it has done is saved.

    Attributes:
        signal: what asked.
    """

    def __init__(self, signal: signal.Signals) -> None:
        super().__init__(signal)
        self.signal = signal


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
        if self._announce:
            os.write(2, _NOTICE)  # print may be what was interrupted
