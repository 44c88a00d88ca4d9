"""Which jobs of a sweep failed is known from its folder, once."""

import errno
from pathlib import Path

import pytest

from fedexp.state.failed_jobs import record, take


def test_failed_jobs_are_known_until_they_are_taken(tmp_path: Path) -> None:
    record(tmp_path, 3, tmp_path / "3")
    record(tmp_path, 12, tmp_path / "a" / "b")
    record(tmp_path, 12, tmp_path / "a" / "b")  # tried twice
    assert take(tmp_path) == {tmp_path / "3", tmp_path / "a" / "b"}
    assert take(tmp_path) == set()
    assert list(tmp_path.iterdir()) == []


def test_a_relative_and_an_absolute_folder_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s").mkdir()
    record(Path("s"), 0, tmp_path / "s" / "0")
    assert take(Path("s")) == {Path("s/0")}


def test_a_full_disk_leaves_a_failed_job_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("write_text", "mkdir"):
        with monkeypatch.context() as full:
            full.setattr(Path, name, fails)
            record(tmp_path, 3, tmp_path / "3")
    assert take(tmp_path) == set()
