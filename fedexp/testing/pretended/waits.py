"""Where a program would wait for a GPU."""

import sys
from collections.abc import Callable, Iterator
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
    with told_of_waits(lambda what, frame: found.append(_wait(what, frame))):
        yield found


@contextmanager
def told_of_waits(listener: Callable[[str, FrameType | None], object]) -> Iterator[None]:
    """Inside the block, call ``listener`` before each wait.

    Its arguments are what waits, and the frame of the Python function that does it. What the
    listener raises is a RuntimeError of that function.
    """
    device()
    load().listen(lambda what: listener(what, sys._getframe(1)))
    try:
        yield
    finally:
        load().listen(None)


def _wait(what: str, frame: FrameType | None) -> Wait:
    calls: list[str] = []
    line = 0
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ROOT) and "/testing/" not in code.co_filename:
            line = line or frame.f_lineno
            calls.append(f"{code.co_filename[len(_ROOT) + 1 :]} {code.co_qualname}")
        frame = frame.f_back
    return Wait(what, tuple(calls), line)
