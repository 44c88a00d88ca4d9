"""A run whose disk fills up stops in one line, and goes on to the same end when there is space."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.full_disk import files_up_to
from support.short_runs import outcome, refusal, run

OVERRIDES = ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.memory=2"]


LEVELS = [0, 100, 1000, 4000, 6000, 8000, 10_000, 12_000, 16_000, 24_000]


@pytest.mark.matrix
@pytest.mark.parametrize("level", LEVELS)
def test_files_that_cannot_grow(level: int, tmp_path: Path) -> None:
    expected = run(tmp_path / "whole", *OVERRIDES)
    folder = tmp_path / "run"
    with files_up_to(level):
        line = refusal(folder, *OVERRIDES)
    assert line or level > 0
    if line is not None:
        assert "\n" not in line
        assert "File too large" in line
    assert run(folder, *OVERRIDES) == expected
    print(f"files of at most {level} bytes: {line or 'ends well'}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 KiB that ``grow`` enlarges."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("only root can mount a disk")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def grow(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_again_and_again(small_disk: Path, tmp_path: Path) -> None:
    """Each time there are a few more pages, so that another file is the one that does not fit."""
    expected, folder = run(tmp_path / "whole", *OVERRIDES), small_disk / "run"
    lines, size = [], 16 * 1024
    while (line := refusal(folder, *OVERRIDES)) is not None:
        assert "\n" not in line
        assert "No space left" in line
        lines.append(line)
        size += 12 * 1024
        grow(small_disk, size)
    assert outcome(folder) == expected
    assert len(lines) > 5
    print(f"{len(lines)} full disks, then {size // 1024} KiB were enough")
