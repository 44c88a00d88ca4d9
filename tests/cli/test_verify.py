"""``fedexp-verify``: exit codes and lines."""

import json
from pathlib import Path

import pytest
from support.short_runs import SHORT

import fedexp
from fedexp.cli.verify import main


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs, as a sweep leaves them."""
    folder = tmp_path_factory.mktemp("sweep")
    for seed in range(3):
        run = [f"seed={seed}", "rounds=1", f"hydra.run.dir={folder / str(seed)}"]
        fedexp.run([*SHORT, *run])
    return folder


def verify(*words: object) -> int:
    """The exit code of the command."""
    try:
        main([str(each) for each in words])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_a_sample_of_the_jobs_is_checked(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(sweep, "--jobs", "2", "--to", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[2] for line in lines] == ["the same bits through round 1 of 1"] * 2
    verdicts = json.loads((tmp_path / "out" / "verdict.json").read_text())
    places = [Path(each["place"]).name for each in verdicts]
    assert [each["outcome"] for each in verdicts] == ["same", "same"]
    assert sorted(p.parent.name for p in (tmp_path / "out").glob("*/metrics.jsonl")) == places


def test_what_cannot_be_compared(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(tmp_path / "nothing") == 2
    assert verify(tmp_path) == 2
    assert verify(sweep, "seed=1") == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"fedexp-verify: {tmp_path / 'nothing'}: does not exist"
    assert said[1] == f"fedexp-verify: {tmp_path}: no run in it"
    assert said[2].startswith("fedexp-verify: seed=1: a result is checked with its own config")
    (tmp_path / "run.json").write_text("{}")
    assert verify(tmp_path) == 2
    assert verify(sweep, "--rounds", "0") == 2


def test_a_tampered_run_is_exit_code_1(
    sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("run.json", "metrics.jsonl", "summary.json", "origin.json"):
        (tmp_path / "run" / name).write_bytes((sweep / "0" / name).read_bytes())
    assert verify(tmp_path / "run") == 1  # without partition.csv
    assert "partition.csv: is missing" in capsys.readouterr().out
