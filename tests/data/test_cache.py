import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedexp.data.cache import Images, cached_images, remove_leftovers
from fedexp.errors import InputError

SHAPE = (2, 3)
VALUES = np.arange(6, dtype=np.uint8).reshape(SHAPE)
MAPPED, IN_MEMORY = 0, 2**30


class Fill:
    """Counts how often the array had to be made."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, array: Images) -> None:
        self.calls += 1
        array[:] = VALUES


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def scribble(path: Path) -> None:
    path.write_bytes(b"not an array")


def other_shape(path: Path) -> None:
    np.save(path, VALUES.T)


def other_type(path: Path) -> None:
    np.save(path, VALUES.astype(np.int16))


@pytest.mark.parametrize("map_above", [MAPPED, IN_MEMORY])
def test_the_array_is_made_once(tmp_path: Path, map_above: int) -> None:
    path, fill = tmp_path / "a" / "b.npy", Fill()
    for _ in range(2):
        array = cached_images(path, SHAPE, fill, map_above)
        assert array.dtype == np.uint8
        assert np.array_equal(array, VALUES)
        assert isinstance(array, np.memmap) == (map_above == MAPPED)
    assert fill.calls == 1
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("map_above", [MAPPED, IN_MEMORY])
def test_writing_to_the_array_leaves_the_file_alone(tmp_path: Path, map_above: int) -> None:
    path, fill = tmp_path / "b.npy", Fill()
    cached_images(path, SHAPE, fill, map_above)[:] = 9
    assert np.array_equal(cached_images(path, SHAPE, fill, map_above), VALUES)
    assert fill.calls == 1


@pytest.mark.parametrize("map_above", [MAPPED, IN_MEMORY])
@pytest.mark.parametrize("damage", [truncate, empty, scribble, other_shape, other_type])
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, damage: Callable[[Path], None], map_above: int
) -> None:
    path, fill = tmp_path / "b.npy", Fill()
    cached_images(path, SHAPE, fill, map_above)
    damage(path)
    assert np.array_equal(cached_images(path, SHAPE, fill, map_above), VALUES)
    assert fill.calls == 2


@pytest.mark.parametrize("map_above", [MAPPED, IN_MEMORY])
def test_a_failure_while_filling_leaves_nothing_behind(tmp_path: Path, map_above: int) -> None:
    def fail(array: Images) -> None:
        array[0] = 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_images(tmp_path / "b.npy", SHAPE, fail, map_above)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^data\.cache: .*file/b\.npy cannot be written"):
        cached_images(tmp_path / "file" / "b.npy", SHAPE, Fill())


def test_a_disk_without_room_is_an_error_before_anything_is_decoded(tmp_path: Path) -> None:
    fill = Fill()
    with pytest.raises(InputError, match=r"needs 1,000,000,000,000,000 bytes"):
        cached_images(tmp_path / "b.npy", (10**15,), fill)
    assert fill.calls == 0


WRITER = """
import sys, time
from pathlib import Path
from fedexp.data.cache import cached_images

def fill(array):
    array[:] = 1
    print("writing", flush=True)
    time.sleep(60)

cached_images(Path(sys.argv[1]), (2, 3), fill, int(sys.argv[2]))
"""


@pytest.mark.parametrize("map_above", [MAPPED, IN_MEMORY])
def test_what_a_killed_process_left_is_removed_but_nothing_of_a_living_one(
    tmp_path: Path, map_above: int
) -> None:
    folder = tmp_path / "images"
    command = [sys.executable, "-c", WRITER, str(folder / "a.npy"), str(map_above)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (left,) = folder.iterdir()
        others = [folder / "kept.npy", folder / ".note", tmp_path / ".0a1b2c3d.x.npy"]
        for path in [*others, left]:
            path.touch()
            os.utime(path, (0, 0))
        remove_leftovers(tmp_path)
        assert left.exists()
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    assert left.exists()
    os.utime(left)
    remove_leftovers(tmp_path)
    assert left.exists()  # young: a process may be about to lock it
    os.utime(left, (0, 0))
    remove_leftovers(tmp_path)
    assert not left.exists()
    assert all(path.exists() for path in others)
