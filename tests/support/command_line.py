"""``fedexp`` as its users type it, each time in a process of its own.

The processes are forked from one that has imported everything, so that a test does not spend its
time on imports. What a process must do by itself (imports, signals, a clean start) is tested with
``subprocess`` instead.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path
from subprocess import CompletedProcess

import pytest

PROCESSES = multiprocessing.get_context("forkserver")
"""Starts processes that have imported everything."""

PROCESSES.set_forkserver_preload(
    [
        *("fedexp.train", "fedexp.preview", "fedexp.runtime.execution"),
        *("matplotlib.pyplot", "pandas", "sklearn.datasets", "wandb", "support.quick_processes"),
    ]
)


@contextmanager
def server_with_path() -> Iterator[None]:
    """In this block the process to fork from starts with ``sys.path``; Python 3.11 forgets it."""
    ensure_running = forkserver.ForkServer.ensure_running

    def ensure_running_with_path(server: forkserver.ForkServer) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
            ensure_running(server)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver.ForkServer, "ensure_running", ensure_running_with_path)
        yield


def fedexp(*arguments: str, folder: Path) -> CompletedProcess[str]:
    """The command, typed in this folder; what it prints, and its exit code."""
    return _run("fedexp.train", arguments, folder)


def fedexp_partition(*arguments: str, folder: Path) -> CompletedProcess[str]:
    """The preview of the partition, likewise."""
    return _run("fedexp.preview", arguments, folder)


def _run(module: str, arguments: tuple[str, ...], folder: Path) -> CompletedProcess[str]:
    printed = [folder.parent / f"{folder.name}.{name}" for name in ("stdout", "stderr")]
    environment = os.environ | {"COLUMNS": "200"}
    process = PROCESSES.Process(
        target=_main, args=(module, list(arguments), folder, environment, printed)
    )
    process.start()
    process.join()
    assert process.exitcode is not None
    out, error = (path.read_text() for path in printed)
    return CompletedProcess([module, *arguments], process.exitcode, out, error)


def _main(
    module: str,
    arguments: list[str],
    folder: Path,
    environment: dict[str, str],
    printed: list[Path],
) -> None:
    """In the new process: the module's ``main`` with these arguments."""
    for number, path in enumerate(printed, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()
