"""Output into a pipe that nobody reads any more, as after ``fedexp --help | head -2``.

What nobody reads is dropped, and the command goes on: a run in a pipe writes all its files. At its
end the command has the exit code of tools that end at the signal SIGPIPE. The signal itself would
also end a run when a connection of W&B or between processes breaks, so Python ignores it.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any, TextIO

from fedexp.errors import InputError

_CODE = 128 + signal.SIGPIPE
_closed: set[int] = set()
"""The file descriptors of the streams whose reader has closed the pipe."""


@contextmanager
def quiet_in_a_pipe() -> Iterator[None]:
    """Run a command, whose output may be closed; then raise SystemExit with the code 141.

    If the command fails, its own exit code stays.
    """
    drop_unread_output()
    try:
        yield
    except SystemExit as ended:
        if ended.code:
            raise
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if _closed:
        raise SystemExit(_CODE)


@contextmanager
def one_line_command(name: str) -> Iterator[None]:
    """Run a command that is not Hydra's: as above, and an InputError becomes one line."""
    with quiet_in_a_pipe():
        try:
            yield
        except InputError as error:
            raise SystemExit(f"{name}: {error}") from None


def drop_unread_output() -> None:
    """Make this process's standard output and standard error drop what nobody reads."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            _drop_unread(stream)


@cache  # once for each stream
def _drop_unread(stream: TextIO) -> None:
    for name in ("write", "flush"):
        setattr(stream, name, _dropping(stream, getattr(stream, name)))


def _dropping(stream: TextIO, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def drop(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())  # also takes what is still buffered
            os.close(nowhere)
            _closed.add(stream.fileno())
            return None

    return drop
