"""The errors that the command line prints as one line; any module may raise them."""

from __future__ import annotations

import signal


class InputError(ValueError):
    """A config value, a file or a combination that cannot work.

    Its message is one line that names the key or file, its value and what is allowed. The command
    line prints that line and exits with code 1; from Python it is an ordinary ``ValueError``.
    """


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and everything it has done is saved.

    Attributes:
        signal: the signal that asked for it.
    """

    def __init__(self, signal: signal.Signals) -> None:
        super().__init__(signal)
        self.signal = signal
