"""An error in a user's code is shown with the user's calls."""

from pathlib import Path
from traceback import walk_tb
from typing import Any

import pytest
from support.command_line import fedexp
from support.short_runs import NO_PICTURES

from fedexp.cli import own_frames
from fedexp.cli.own_frames import shorten

QUICK = ["data.subset=100", "rounds=1", "measure.personal=null", "tracking.wandb.mode=disabled"]
QUICK += NO_PICTURES


def test_the_users_calls_are_shown_and_no_others(tmp_path: Path) -> None:
    done = fedexp("loss._target_=support.contract_breakers.Failing", *QUICK, folder=tmp_path)
    assert done.returncode == 1
    files = [line for line in done.stderr.splitlines() if line.lstrip().startswith("File ")]
    assert [line.rpartition("in ")[2] for line in files] == ["forward", "_beyond_the_end"]
    assert all("contract_breakers.py" in line for line in files)
    assert "IndexError" in done.stderr
    assert "while training client" in done.stderr
    assert "FEDEXP_FULL_ERROR=1 shows" in done.stderr


def test_without_a_call_of_the_user_the_calls_of_fedexp_are_kept() -> None:
    made_up = str(Path(own_frames.__file__).parent / "made_up.py")
    enter = "def enter(run):\n try: run()\n except ValueError as error: return error"
    names: dict[str, Any] = {}
    exec(compile("def run():\n    raise ValueError", made_up, "exec"), names)
    exec(compile(enter, "<hydra>", "exec"), names)
    shown = walk_tb(shorten(names["enter"](names["run"])).__traceback__)
    assert [frame.f_code.co_name for frame, _ in shown] == ["run"]


def test_a_file_beside_the_package_is_the_users() -> None:
    beside = Path(own_frames.__file__).parents[2] / "fedexp_experiments" / "loss.py"
    assert own_frames._whose(str(beside)) == "user"
    assert own_frames._whose(own_frames.__file__) == "fedexp"


def test_everything_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDEXP_FULL_ERROR", "1")
    error = ValueError()
    assert shorten(error) is error
    assert not hasattr(error, "__notes__")
