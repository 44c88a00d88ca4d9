"""The errors that the command line prints as one line; any module may raise them."""

from __future__ import annotations

import signal


class InputError(ValueError):
    """A config value, a file or a combination of settings that cannot work.

    The message is one line: the key or file, its value, and the allowed values. The command line
    prints this line and exits with code 1. In Python the error is an ordinary ``ValueError``.
    """


class Interrupted(KeyboardInterrupt):
    """The run stopped at a signal, such as Ctrl-C; its last checkpoint, if any, can be resumed.

    Attributes:
        signal: the signal that stopped the run.
    """

    def __init__(self, signal: signal.Signals) -> None:
        super().__init__(signal)
        self.signal = signal
