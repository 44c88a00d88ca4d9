"""Shorter tracebacks, in which users find their own code."""

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from types import TracebackType

_FULL = "FEDEXP_FULL_ERROR"
_FEDEXP = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "scripts")))
"""Beginnings of the file names of Python's library and of installed packages."""


def shorten(error: BaseException) -> BaseException:
    """Shorten the error's traceback, and add a note about how to see all calls.

    The traceback begins at the first call in a user's file and leaves out fedexp's calls. If there
    is no call in a user's file, the mistake is fedexp's, and only fedexp's calls are shown. The
    errors that caused this error are shortened, too. With ``FEDEXP_FULL_ERROR=1`` in the
    environment all calls are shown.
    """
    if os.environ.get(_FULL):
        return error
    for each in _chain(error):
        each.__traceback__ = _shortened(each.__traceback__)
    error.add_note(f"{_FULL}=1 shows the calls of fedexp and Hydra, too")
    return error


def print_shortened(error: BaseException) -> None:
    """Print the shortened error on standard error, in Python's usual form."""
    shorten(error)
    sys.__excepthook__(type(error), error, error.__traceback__)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of the cause, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _shortened(traceback: TracebackType | None) -> TracebackType | None:
    calls = list(walk_tb(traceback))
    whose = [_whose(frame.f_code.co_filename) for frame, _ in calls]
    begin, kept = 0, {"fedexp"} if "fedexp" in whose else {"library"}
    if "user" in whose:
        begin, kept = whose.index("user"), {"user", "library"}
    shortened = None
    for (frame, line), owner in reversed([*zip(calls, whose, strict=True)][begin:]):
        if owner in kept:
            shortened = TracebackType(shortened, frame, frame.f_lasti, line)
    return shortened


def _whose(file: str) -> str:
    if file.startswith(_FEDEXP) or "hydra_plugins" in file:
        return "fedexp"
    return "library" if file.startswith(_LIBRARIES) else "user"
