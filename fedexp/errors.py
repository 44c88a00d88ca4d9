"""The errors that the command line prints as one line; any module may raise them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class InputError(ValueError):
    """A config value, a file or a combination of settings that cannot work.

    The message is one line: the key or file, its value, and the allowed values. The command line
    prints this line and exits with code 1. In Python the error is an ordinary ``ValueError``.
    """


DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""Errors of reading a damaged file."""


@contextmanager
def readable(place: object = None, *others: type[Exception]) -> Iterator[None]:
    """In this block, an OSError becomes an InputError of one line.

    Args:
        place: the file for the message, perhaps after its config key; None for the error's file.
        others: further errors that mean that the file is damaged, such as ``DAMAGED``.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        if not isinstance(error, (OSError, *others)):
            raise
        said = error.strerror if isinstance(error, OSError) else None
        where = place or getattr(error, "filename", None)
        reason = said or " ".join(str(error).split())
        raise InputError(f"{where}: cannot be read ({reason})") from error


def first_line(error: Exception) -> str:
    """The first line of an error's message, for a message of one line; its class if it has none."""
    return str(error).partition("\n")[0] or type(error).__name__


class Interrupted(KeyboardInterrupt):
    """The run stopped at a signal, such as Ctrl-C; its last checkpoint, if any, can be resumed.

    Attributes:
        signal: the signal that stopped the run.
    """

    def __init__(self, signal: signal.Signals) -> None:
        super().__init__(signal)
        self.signal = signal
