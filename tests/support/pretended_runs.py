"""Runs on the pretended device, in a process that has not trained before."""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import fedexp
from fedexp.errors import InputError
from fedexp.testing.pretended import Pretended, missing_tool, told_of_waits
from support import short_runs
from support.command_line import PROCESSES

DEVICE = "engine.device=fedexp.testing.pretended.Pretended"
NEEDS_COMPILER = pytest.mark.skipif(
    missing_tool() is not None, reason="needs a C++ compiler and ninja"
)
TWO_ROUNDS = (
    *("rounds=2", "clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"),
    *("measure.prototypes=null", "measure.partition=null", "checkpoint.keep=0", "seed=3"),
    *("tracking.wandb.mode=disabled", "tracking.progress=false", "engine.threads=1"),
    "engine.channels_last=false",  # "auto" depends on the device
)
"""A run of a second. The second round is measured."""

_ROOT = str(Path(fedexp.__file__).parent)


class Wait(NamedTuple):
    """One wait.

    Attributes:
        what: what made the program wait, such as ``item`` or ``copy to the host``.
        calls: the calls in fedexp that led to it, the innermost first, each as
            ``folder/file.py function``; empty in a backward pass, which has no calls of Python.
    """

    what: str
    calls: tuple[str, ...]


@contextmanager
def waits() -> Iterator[list[Wait]]:
    """Record in the yielded list where the program would wait for a GPU, inside the block."""
    found: list[Wait] = []
    with told_of_waits(lambda what, frame: found.append(Wait(what, tuple(_calls(frame))))):
        yield found


def _calls(frame: FrameType | None) -> Iterator[str]:
    """The frame's call and the calls that led to it, if they are in fedexp; see ``Wait``."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_ROOT) and "/testing/" not in code.co_filename:
            yield f"{code.co_filename[len(_ROOT) + 1 :]} {code.co_qualname}"
        frame = frame.f_back


class Outcome(NamedTuple):
    """What a run computed.

    Attributes:
        weights: the digest of the final global weights.
        numbers: each round's metrics except times.
        found: on the pretended device, the waits of training and measuring.
    """

    weights: str
    numbers: list[dict[str, Any]]
    found: list[Wait]


@contextmanager
def new_process() -> Iterator[ProcessPoolExecutor]:
    """One process that has imported everything; the device must come before a backward pass."""
    with ProcessPoolExecutor(1, PROCESSES) as pool:
        yield pool


def both(overrides: Sequence[str], environment: Mapping[str, str]) -> list[Outcome] | str:
    """The same run on the CPU and on the device; the line of the error that refuses it."""
    os.environ.update(environment)
    device = Pretended.get_parallel_devices([0])
    assert device  # loaded before the first training
    with tempfile.TemporaryDirectory() as folder:
        try:
            cpu = outcome(Path(folder, "cpu"), *overrides, "engine.device=cpu")
        except InputError as error:
            return str(error)
        return [cpu, outcome(Path(folder, "device"), *overrides, DEVICE)]


def outcome(folder: Path, *overrides: str) -> Outcome:
    """Run, or resume, the experiment in this folder."""
    with waits() as found:
        fedexp.run([*TWO_ROUNDS, *overrides, f"hydra.run.dir={folder}"])
    return Outcome(*short_runs.outcome(folder), found)
