"""Damaged, half-copied and hostile folders of runs: one line each, never a traceback."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.short_runs import SHORT
from support.verified import edit_json, ways

import fedexp
from fedexp.verification.run import verify_run
from fedexp.verification.verdict import Outcome


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    fedexp.run([*SHORT, "rounds=1", f"hydra.run.dir={folder}"])
    return folder


def config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: edit_json(folder / "run.json", lambda found: change(found["config"]))


def start(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    return lambda folder: edit_json(
        folder / "origin.json", lambda found: change(found["starts"][0])
    )


def link_out(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.rename(folder.parent / "metrics.jsonl")
    os.symlink(folder.parent / "metrics.jsonl", path)


def pipe(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()
    os.mkfifo(folder / "metrics.jsonl")


CHANGES: dict[str, Callable[[Path], object]] = {
    "no run.json": lambda folder: (folder / "run.json").unlink(),
    "half a run.json": lambda folder: os.truncate(folder / "run.json", 100),
    "no metrics": lambda folder: (folder / "metrics.jsonl").unlink(),
    "metrics of another program": lambda folder: (folder / "metrics.jsonl").write_text("[1]\n"),
    "text for a number": lambda folder: (folder / "metrics.jsonl").write_text(
        '{"round": 1, "train/loss": "x"}\n'
    ),
    "a number too large": lambda folder: (folder / "metrics.jsonl").write_text(
        f'{{"round": 1, "train/loss": {"9" * 400}}}\n'
    ),
    "half an origin": lambda folder: os.truncate(folder / "origin.json", 200),
    "an origin that is a list": lambda folder: (folder / "origin.json").write_text("[]"),
    "an origin without code": start(lambda found: found.pop("code")),
    "code that is no text": start(lambda found: found["code"]["own"].update({"a.py": 3})),
    "a summary that is a list": lambda folder: (folder / "summary.json").write_text("[]"),
    "a summary of numbers": lambda folder: edit_json(
        folder / "summary.json", lambda found: found.update(records=3)
    ),
    "weights of another program": lambda folder: (folder / "checkpoints/final.pt").write_text("x"),
    "a link out of the folder": link_out,
    "a pipe": pipe,
    "no engine": config(lambda found: found.pop("engine")),
    "no trackers": config(lambda found: found["tracking"].pop("trackers")),
    "an unknown key": config(lambda found: found["clients"].update(evil=1)),
    "a command": config(lambda found: found["loss"].update(_target_="os.system")),
    "no class": config(lambda found: found["loss"].update(_target_="fedexp.losses.none.None")),
    "a module to import": config(lambda found: found["loss"].update(_target_="json.nothing")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_is_one_line(name: str, finished: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(finished, tmp_path / "copy"))
    CHANGES[name](copy)
    found = verify_run(copy, ways(1))
    assert found.outcome != Outcome.SAME, found
    assert found.details
    assert not any("\n" in line or "Traceback" in line for line in found.details)
