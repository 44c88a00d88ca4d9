"""Processes that end with their parent, whatever it dies of."""

import multiprocessing
import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from support.command_line import PROCESSES

from fedexp.distributed.parent import follow_parent, parent_has_ended
from fedexp.distributed.processes import spawn

SPAWN = multiprocessing.get_context("spawn")


def endless(folder: Path) -> None:
    """The work of a rank that never ends by itself."""
    (folder / str(os.getpid())).touch()
    while True:
        time.sleep(0.01)


def deaf_parent(folder: Path) -> None:
    """A run of two ranks in the background of a shell, where Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    spawn(endless, 2, folder)


def in_a_server(folder: Path) -> None:
    """A process of a fork server, which is its parent instead of the one that asked for it."""
    follow_parent(signal.SIGKILL)
    assert not parent_has_ended()
    (folder / "alive").touch()


def late(folder: Path) -> None:
    """Begins after its parent has been killed; nobody has waited for it, so it is a zombie."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    while os.getppid() == parent.pid:
        time.sleep(0.01)
    (folder / str(os.getpid())).touch()
    follow_parent()
    (folder / "trains on").touch()


def parent_of_late(folder: Path) -> None:
    """Dies before its child asks for it, and stays a zombie for as long as its own parent lives."""
    if not (parent := os.fork()):
        SPAWN.Process(target=late, args=(folder,)).start()
        os.kill(os.getpid(), signal.SIGKILL)
    wait(folder, 1)
    time.sleep(0.5)
    os.waitpid(parent, 0)


def wait(folder: Path, names: int) -> list[int]:
    """Wait for this number of processes; their numbers."""
    deadline = time.monotonic() + 60
    while len(found := [int(path.name) for path in folder.iterdir()]) < names:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def all_end(processes: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(lives, processes)):
        if time.monotonic() > deadline:
            for process in filter(lives, processes):
                os.kill(process, signal.SIGKILL)
            return False
        time.sleep(0.02)
    return True


def lives(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def started(target: object, folder: Path) -> BaseProcess:
    process = PROCESSES.Process(target=target, args=(folder,))  # type: ignore[arg-type]
    process.start()
    return process


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux sends the signal")


@pytest.mark.slow
def test_ranks_end_with_a_killed_parent_that_ignores_ctrl_c(tmp_path: Path) -> None:
    """They trained on for ever, and held the folder's lock."""
    parent = started(deaf_parent, tmp_path)
    ranks = wait(tmp_path, 2)
    parent.kill()
    assert all_end(ranks)


def test_a_process_of_a_fork_server_has_a_parent(tmp_path: Path) -> None:
    started(in_a_server, tmp_path).join()
    assert (tmp_path / "alive").exists()


@pytest.mark.slow
def test_a_process_whose_parent_died_before_it_asked_ends_at_once(tmp_path: Path) -> None:
    parent = started(parent_of_late, tmp_path)
    (process,) = wait(tmp_path, 1)
    assert all_end([process])
    parent.join()
    assert not (tmp_path / "trains on").exists()
