"""Writing a file whole or not at all."""

from pathlib import Path

import numpy as np
import pytest

from fedexp.state.atomic import atomic_path, write_atomically


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_content_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    for content in (b"first", memoryview(b"second, longer"), b""):
        write_atomically(tmp_path / "a.txt", content)
        assert (tmp_path / "a.txt").read_bytes() == bytes(content)
        assert names(tmp_path) == ["a.txt"]


def test_a_failed_write_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")

    def write_until_the_disk_is_full() -> None:
        with atomic_path(path) as temporary:
            temporary.write_bytes(b"ne")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_until_the_disk_is_full()
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.txt"]


def test_readers_see_the_old_content_until_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"old")
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


def test_two_writers_do_not_share_a_temporary_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with atomic_path(path) as first, atomic_path(path) as second:
        np.save(first, np.zeros(3))
        np.save(second, np.ones(3))
    assert names(tmp_path) == ["a.npy"]
    np.testing.assert_array_equal(np.load(path), np.zeros(3))  # the outer block ends last


def test_a_missing_folder_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "none" / "a.txt", b"")
