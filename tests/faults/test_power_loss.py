"""Runs that go on after a power loss at any moment end as if nothing had happened."""

import logging
import sys
from collections import Counter
from pathlib import Path

import pytest
from forgetful_disk import ForgetfulDisk, Image, restore
from short_runs import Outcome, run

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


def test_some_power_losses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    overrides = RUNS["first launch"]
    found, flushes, expected = images(tmp_path / "watched", *overrides)
    assert flushes > 30
    assert len(found) > 60
    counts = check(found[:: len(found) // 6], expected, tmp_path, overrides, caplog)
    assert counts["went on"] >= 2
    assert counts["started again"] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_all_power_losses(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found, flushes, expected = images(tmp_path / "watched", *RUNS[name])
    counts = check(found, expected, tmp_path, RUNS[name], caplog)
    print(f"{name}: {flushes} fsyncs, {len(found)} images; {dict(counts)}")
    assert sum(counts.values()) == len(found)


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
