"""The names of a run, its overrides and chosen options, must give the config that was trained."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.short_runs import SHORT
from support.verified import edit_json

import fedexp
from fedexp.cli.compose import composed_and_checked
from fedexp.verification.claims import read_claim
from fedexp.verification.names import checked_names


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    fedexp.run([*SHORT, "rounds=1", f"hydra.run.dir={folder}"])
    return folder


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def checked(folder: Path, here: str = "1.0") -> tuple[list[str], list[str]]:
    """Of a run that version 1.0 of fedexp made, checked with the version ``here``."""
    claim = read_claim(folder)
    was, now = ({**claim.origins[0], "fedexp": {"version": each}} for each in ("1.0", here))
    return checked_names(replace(claim, origins=[was]), now, composed_and_checked)


def another_method(found: dict[str, Any]) -> None:
    found["choices"]["algorithm"] = "fedprox"
    found["overrides"].append("algorithm=fedprox")


def another_value(found: dict[str, Any]) -> None:
    found["overrides"].append("optimizer.lr=0.7")


def test_the_names_of_a_run_are_those_of_its_config(finished: Path) -> None:
    assert checked(finished) == ([], [])


@pytest.mark.parametrize(
    ("change", "given"),
    [(another_method, "unlike its choices"), (another_value, "optimizer.lr=0.7, unlike run.json")],
)
def test_names_of_another_config_are_a_contradiction(
    change: Callable[[dict[str, Any]], None], given: str, copy: Path
) -> None:
    edit_json(copy / "summary.json", change)
    lines, others = checked(copy)
    assert any(line.startswith("summary.json: its overrides give ") for line in lines)
    assert any(given in line for line in lines)
    assert others == []
    assert checked(copy, here="1.1") == ([], lines)  # whose options may differ


@pytest.mark.parametrize("word", ["seed=${oc.env:HOME}", "loss._target_=mine.Loss", "loss=mine"])
def test_overrides_that_are_not_composed_are_named(word: str, copy: Path) -> None:
    """They could show variables of this machine or import modules, or need somebody's options."""
    edit_json(copy / "summary.json", lambda found: found["overrides"].append(word))
    lines, (other,) = checked(copy)
    assert lines == []
    assert other.startswith(f"names: not checked ({word}")
