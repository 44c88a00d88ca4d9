"""Where a program would wait for a GPU."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import fedexp
from fedexp.testing.pretended.accelerator import device
from fedexp.testing.pretended.build import load

_ROOT = str(Path(fedexp.__file__).parent)


class Wait(NamedTuple):
    """One wait.

    Attributes:
        what: what made the program wait, such as ``item`` or ``copy to the host``.
        calls: the calls in fedexp that led to it, the innermost first, each as
            ``folder/file.py function``; empty in a backward pass, which has no calls of Python.
        line: the number of the innermost call's line.
    """

    what: str
    calls: tuple[str, ...]
    line: int


@contextmanager
def waits() -> Iterator[list[Wait]]:
    """Record in the yielded list where the program would wait for a GPU, inside the block."""
    found: list[Wait] = []
    device()
    load().listen(lambda what: found.append(_wait(what, sys._getframe(1))))
    try:
        yield found
    finally:
        load().listen(None)


def _wait(what: str, frame: FrameType | None) -> Wait:
    calls, line = [], 0
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ROOT) and "/testing/" not in code.co_filename:
            line = line or frame.f_lineno
            calls.append(f"{code.co_filename[len(_ROOT) + 1 :]} {code.co_qualname}")
        frame = frame.f_back
    return Wait(what, tuple(calls), line)
