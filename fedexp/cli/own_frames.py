"""Shorter tracebacks, in which users find their own code."""

import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType

_FULL = "FEDEXP_FULL_ERROR"
_FEDEXP = str(Path(__file__).resolve().parents[1]) + os.sep
_LIBRARIES = ("<", *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "scripts")))
"""Beginnings of the file names of Python's library and of installed packages."""

_Call = tuple[FrameType, int]
"""A frame of the call stack, and the line number that the frame has reached."""


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
        each.__traceback__ = _traceback(_helpful([*walk_tb(each.__traceback__)]))
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


def _helpful(calls: Sequence[_Call]) -> Sequence[_Call]:
    whose = [_whose(frame.f_code.co_filename) for frame, _ in calls]
    if "user" in whose:
        begin = whose.index("user")
        later = zip(calls[begin:], whose[begin:], strict=True)
        return [call for call, owner in later if owner != "fedexp"]
    return [call for call, owner in zip(calls, whose, strict=True) if owner == "fedexp"] or calls


def _whose(file: str) -> str:
    if file.startswith(_FEDEXP) or "hydra_plugins" in file:
        return "fedexp"
    return "library" if file.startswith(_LIBRARIES) else "user"


def _traceback(calls: Sequence[_Call]) -> TracebackType | None:
    traceback = None
    for frame, line in reversed(calls):
        traceback = TracebackType(traceback, frame, frame.f_lasti, line)
    return traceback
