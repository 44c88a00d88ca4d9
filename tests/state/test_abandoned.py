import os
import tempfile
from pathlib import Path

import pytest
import torch

from fedexp.state.abandoned import LOCK, hold, remove_abandoned_folders
from fedexp.state.folder_lock import locked
from fedexp.state.ram_and_disk import RamAndDisk


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def old(folder: Path) -> Path:
    """As if it had been made long ago."""
    os.utime(folder, (0, 0))
    return folder


def made(folder: Path) -> Path:
    folder.mkdir()
    (folder / "client.pt").touch()
    return folder


def test_folders_of_dead_processes_are_removed(temporary: Path) -> None:
    dead = made(temporary / "fedexp-clients-aaaaaaaa")
    living = made(temporary / "fedexp-ranks-bbbbbbbb")
    hold(dead).close()
    with hold(living):
        for folder in (dead, living):
            old(folder)
        remove_abandoned_folders()
        assert not dead.exists()
        assert (living / "client.pt").exists()


def test_other_folders_stay(temporary: Path) -> None:
    without_lock, foreign = made(temporary / "fedexp-ranks-aaaaaaaa"), made(temporary / "theirs")
    (foreign / LOCK).touch()
    young = made(temporary / "fedexp-clients-bbbbbbbb")
    (young / LOCK).touch()
    for folder in (without_lock, foreign):
        old(folder)
    remove_abandoned_folders()
    assert all((each / "client.pt").exists() for each in (without_lock, foreign, young))


def test_runs_and_files_of_a_user_stay(temporary: Path) -> None:
    """They were deleted if their names began with fedexp-."""
    runs = [made(temporary / name) for name in ("fedexp-cifar", "fedexp-clients-20260101")]
    for run in runs:
        with locked(run):
            pass
        old(run)
    files = [temporary / name for name in ("fedexp-notes.txt", "fedexp-clients-cccccccc")]
    for file in files:
        file.write_text("mine")
        old(file)
    remove_abandoned_folders()
    assert all((run / "client.pt").exists() for run in runs)
    assert all(file.read_text() == "mine" for file in files)


def test_the_states_of_a_living_process_stay(temporary: Path) -> None:
    states = RamAndDisk[int, dict[str, torch.Tensor]](ram_bytes=0)
    for client in range(3):
        states[client] = {"weight": torch.full((4,), float(client))}
    (folder,) = temporary.iterdir()
    remove_abandoned_folders()
    old(folder)
    remove_abandoned_folders()
    assert states[0]["weight"].tolist() == [0.0] * 4
    states.clear()
    assert list(temporary.iterdir()) == []
