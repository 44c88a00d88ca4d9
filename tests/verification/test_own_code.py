"""Own code of a run is shown first, and runs only if asked."""

import sys
from pathlib import Path

import pytest
from support.own_methods import FILE, LOSS, REWRITES, run_with_own_loss
from support.verified import edit_json, forget_digests, ways

from fedexp.verification.run import verify_run
from fedexp.verification.verdict import Outcome


def test_it_is_shown_and_then_run_from_the_folder_alone(tmp_path: Path) -> None:
    run = run_with_own_loss(tmp_path)
    shown = verify_run(run, ways())
    assert shown.outcome == Outcome.UNKNOWN
    assert shown.line == "needs --run-own-code to be trained again; nothing was run"
    assert shown.details[0] == "own code: loss=elsewhere_loss.Halved"
    assert shown.details[1].startswith(f"{FILE}: 4 lines, SHA-256 ")
    assert [line.removeprefix("    ") for line in shown.details[2:]] == LOSS.splitlines()
    before = list(sys.path)
    again = verify_run(run, ways(runs_own_code=True))
    assert again.line == "the same bits through round 2 of 2"
    assert again.details == shown.details[:2]
    assert "elsewhere_loss" not in sys.modules
    assert sys.path == before


def test_code_that_changes_its_file_is_one_line(tmp_path: Path) -> None:
    run = run_with_own_loss(tmp_path, REWRITES)
    found = verify_run(run, ways(runs_own_code=True))
    assert found.outcome != Outcome.SAME
    assert any(line.startswith(f"{FILE}: own code changed this file") for line in found.details)


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "torch/__init__.py", "fedexp/evil.py"])
def test_own_code_takes_no_other_place(name: str, tmp_path: Path) -> None:
    run = run_with_own_loss(tmp_path)
    forget_digests(run)

    def rename(found: dict) -> None:  # type: ignore[type-arg]
        code = found["starts"][0]["code"]
        code["own"] = {name: LOSS}

    edit_json(run / "origin.json", rename)
    found = verify_run(run, ways(runs_own_code=True))
    assert found.outcome == Outcome.UNKNOWN
    assert found.details == [f"{run}: {name}: is no name for a file of own code"]


def test_an_error_of_own_code_is_one_line(tmp_path: Path) -> None:
    run = run_with_own_loss(tmp_path)
    forget_digests(run)

    def fail(found: dict) -> None:  # type: ignore[type-arg]
        code = found["starts"][0]["code"]
        code["own"][FILE] = "raise RuntimeError('a\\nb')"

    edit_json(run / "origin.json", fail)
    found = verify_run(run, ways(runs_own_code=True))
    assert found.outcome == Outcome.DIFFERS
    assert f"origin.json: the digest of {FILE} does not fit its text" in found.details
    assert any("RuntimeError: a" in line for line in found.details)
    assert not any("\n" in line for line in found.details)
