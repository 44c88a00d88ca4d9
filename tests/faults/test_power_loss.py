"""Runs that go on after a power loss at any moment end as if nothing had happened."""

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.command_line import PROCESSES
from support.forgetful_disk import ForgetfulDisk, Image, restore
from support.short_runs import Outcome, outcome, run

from fedexp.state.run_folder import newest_checkpoint

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
RUNS = {
    "first launch": ["algorithm=scaffold", "optimizer.momentum=0", "optimizer.weight_decay=0"],
    "shared files": ["algorithm=fedcda", "aggregator.warmup=1", "aggregator.memory=2"],
}
TWO_ROUNDS = "rounds=2"


def images(folder: Path, *overrides: str) -> tuple[list[Image], int, Outcome]:
    """What a power loss leaves at every moment of a run of two rounds and its extension."""
    folder.mkdir()
    disk = ForgetfulDisk(folder)
    with disk.watch():
        run(folder, *overrides, TWO_ROUNDS)
        expected = run(folder, *overrides, "rounds=3")
    return disk.images, disk.flushes, expected


def check(
    found: list[Image],
    expected: Outcome,
    folder: Path,
    overrides: list[str],
    caplog: pytest.LogCaptureFixture,
) -> Counter[str]:
    """Resume each image; the number of runs that went on, and that said that they start again."""
    counts: Counter[str] = Counter()
    for number, image in enumerate(found):
        restore(image, folder / str(number))
        caplog.clear()
        with caplog.at_level(logging.INFO):
            assert run(folder / str(number), *overrides, "rounds=3") == expected
        goes_on, starts = "goes on after" in caplog.text, "starts afresh" in caplog.text
        assert goes_on != starts
        counts["went on" if goes_on else "started again"] += 1
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_all_power_losses(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, flushes, expected = images(tmp_path / "watched", *RUNS[name])
    assert flushes > 30
    assert len(found) > 60
    counts = check(found, expected, tmp_path, RUNS[name], caplog)
    print(f"{name}: {flushes} fsyncs, {len(found)} images; {dict(counts)}")
    assert sum(counts.values()) == len(found)
    assert counts["went on"] >= 2
    assert counts["started again"] >= 1


def test_a_run_that_has_ended_has_all_of_its_results(tmp_path: Path) -> None:
    """Nothing may be missing once ``summary.json`` is on the disk."""
    found, _, expected = images(tmp_path / "watched", *RUNS["first launch"])
    ended = [image for image in found if image.get("summary.json")]
    assert ended
    for image in ended:
        lines = image.get("metrics.jsonl") or b""
        if b'"rounds": 3' in (image["summary.json"] or b""):
            assert lines.count(b"\n") == 3
            assert image["checkpoints/final.pt"]
            assert image["run.json"]
    assert len(expected[1]) == 3


def test_the_disk_forgets_what_was_not_flushed(tmp_path: Path) -> None:
    """The disk itself, with a file that is replaced without an fsync."""
    (tmp_path / "a").write_bytes(b"old")
    disk = ForgetfulDisk(tmp_path)
    with disk.watch():
        path = tmp_path / "b"
        path.write_bytes(b"new")
        path.replace(tmp_path / "a")
    assert {"a": b"new"} not in disk.images
    assert {"a": b""} in disk.images
    assert {} in disk.images


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An ext4 file system in a file: the file, and the folder where it is mounted."""
    disk, folder = tmp_path / "disk", tmp_path / "mounted"
    disk.touch()
    os.truncate(disk, 32 * 2**20)
    folder.mkdir()
    try:
        subprocess.run(["mkfs.ext4", "-q", "-F", str(disk)], check=True, capture_output=True)
        mount(disk, folder)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root can mount a file system")
    yield disk, folder
    subprocess.run(["umount", str(folder)], check=True)


def mount(disk: Path, folder: Path) -> None:
    subprocess.run(["mount", "-o", "loop", str(disk), str(folder)], check=True, capture_output=True)


def in_a_process(folder: Path, overrides: list[str]) -> None:
    """A run as the user's own process."""
    run(folder, *overrides)


@pytest.mark.slow
def test_replayed_journals(journal: tuple[Path, Path], tmp_path: Path) -> None:
    """The file system as a power loss leaves it at random moments, after its journal is replayed.

    The file under the file system has only what was written to the disk, not what the kernel holds.
    """
    (disk, folder), draw = journal, random.Random(0)
    overrides = [*RUNS["first launch"], "rounds=12"]
    process = PROCESSES.Process(target=in_a_process, args=(folder / "run", overrides))
    process.start()
    assert process.pid is not None
    found: list[Path] = []
    while not (folder / "run" / "metrics.jsonl").exists():
        time.sleep(0.01)
    with suppress(ProcessLookupError):  # it has ended
        while len(found) < 20:
            process.join(draw.uniform(0.02, 0.2))
            os.kill(process.pid, signal.SIGSTOP)
            time.sleep(0.02)  # until a flush that has begun is complete
            found.append(tmp_path / f"disk{len(found)}")
            shutil.copy(disk, found[-1])
            os.kill(process.pid, signal.SIGCONT)
    process.join()
    expected, counts = outcome(folder / "run"), Counter[str]()
    for number, image in enumerate(found):
        again = tmp_path / f"again{number}"
        again.mkdir()
        mount(image, again)
        try:
            is_begun = newest_checkpoint(again / "run")
            assert run(again / "run", *overrides) == expected
        finally:
            subprocess.run(["umount", str(again)], check=True)
        counts["went on" if is_begun else "started again"] += 1
        image.unlink()
    print(f"replayed journals: {dict(counts)}")
    assert counts["went on"] >= 3
