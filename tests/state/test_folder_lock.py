"""One process at a time works in a folder; a killed process leaves the folder free."""

import errno
import fcntl
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from support.command_line import PROCESSES

from fedexp.errors import InputError
from fedexp.state.folder_lock import LOCK, check_free, is_busy, locked, remove_unused


def hold(folder: Path) -> None:
    with locked(folder):
        (folder / "holds").touch()
        time.sleep(60)


def test_another_process_holds_the_lock_until_it_is_killed(tmp_path: Path) -> None:
    process = PROCESSES.Process(target=hold, args=(tmp_path,))
    process.start()
    while not (tmp_path / "holds").exists():
        assert process.is_alive()
        time.sleep(0.01)
    line = f"{tmp_path}: process {process.pid} on {socket.gethostname()} is using this folder"
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"), locked(tmp_path):
        pass
    with pytest.raises(InputError, match=f"^{re.escape(line)}$"):
        check_free(tmp_path)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert not is_busy(tmp_path)
    with locked(tmp_path):
        assert is_busy(tmp_path)


@pytest.mark.parametrize("content", [b"", b"12", b"12 \x1b[31mred\n", b"x" * 1000])
def test_the_holder_need_not_be_known(tmp_path: Path, content: bytes) -> None:
    with locked(tmp_path):
        (tmp_path / LOCK).write_bytes(content)
        with pytest.raises(InputError, match=": another process is using"), locked(tmp_path):
            pass


def test_a_look_at_the_same_moment_does_not_refuse_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / LOCK).touch()
    looking = (tmp_path / LOCK).open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not is_busy(tmp_path)  # two who look do not take each other for a run
    monkeypatch.setattr(time, "sleep", lambda seconds: looking.close())
    with locked(tmp_path):
        assert looking.closed


def test_a_lock_on_a_deleted_file_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def open_and_lose(path: Any, *arguments: int) -> int:
        descriptor = opened(path, *arguments)
        monkeypatch.setattr(os, "open", opened)
        Path(path).unlink()  # the holder before has ended and deleted it
        return descriptor

    monkeypatch.setattr(os, "open", open_and_lose)
    with locked(tmp_path):
        assert is_busy(tmp_path)


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path):
        assert not is_busy(tmp_path)
    assert f"{tmp_path}: the file system has no locks; " in caplog.text
    assert caplog.text.count("\n") == 1


def test_only_an_unused_folder_is_deleted(tmp_path: Path) -> None:
    for name in ("unused", "used"):
        (tmp_path / name).mkdir()
    (tmp_path / "used" / "file").touch()
    for folder in list(tmp_path.iterdir()):
        with locked(folder):
            remove_unused(folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [LOCK, "file", "used"]
