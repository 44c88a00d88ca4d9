"""A run whose folder is deleted or moved while it trains."""

import logging
import shutil
from pathlib import Path

import pytest
from support.short_runs import SHORT, outcome, run

import fedexp
from fedexp.errors import InputError
from fedexp.tracking.tracker import Record, RunInfo, Tracker

SCAFFOLD = ["algorithm=scaffold", "optimizer.momentum=0", "optimizer.weight_decay=0"]


class Vandal(Tracker):
    """Deletes or moves the run's folder after its second round."""

    def __init__(self, run: RunInfo, how: str) -> None:
        self._folder, self._how = run.folder, how

    def log(self, record: Record) -> None:
        if record.round != 2:
            return
        if self._how == "moved":
            self._folder.rename(self._folder.with_name("moved"))
            return
        shutil.rmtree(self._folder)
        if self._how == "replaced by a file":
            self._folder.touch()
        if self._how == "replaced by another run":
            self._folder.mkdir()
            shutil.copy(self._folder.with_name("whole") / "run.json", self._folder)


def vandalised(folder: Path, how: str, *overrides: str) -> fedexp.RunResult:
    vandal = [f"+tracking.trackers.vandal._target_={__name__}.Vandal"]
    vandal += [f"+tracking.trackers.vandal.how='{how}'"]
    return fedexp.run([*SHORT, *SCAFFOLD, *vandal, *overrides, f"hydra.run.dir={folder}"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The run's own; a tracker that fails has another one."""
    found = [each for each in caplog.records if each.levelno >= logging.WARNING]
    return [each.message for each in found if each.name == "fedexp.runtime.open_run"]


@pytest.mark.parametrize("how", ["deleted", "moved"])
def test_what_follows_is_written_to_a_new_folder(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected, folder = run(tmp_path / "whole", *SCAFFOLD), tmp_path / "run"
    caplog.clear()
    result = vandalised(folder, how)
    warnings = [each.message for each in caplog.records if each.levelno >= logging.WARNING]
    assert warnings == [f"{folder}: was deleted or moved; what follows is written to a new folder"]
    assert result.metrics["round"].tolist() == [1, 2, 3, 4]
    assert outcome(folder) == expected
    assert result.lines == (folder / "metrics.jsonl").read_bytes()
    longer = run(tmp_path / "whole", *SCAFFOLD, "rounds=5")
    assert run(folder, *SCAFFOLD, "rounds=5") == longer
    if how == "moved":
        left = sorted(path.name for path in (tmp_path / "moved/checkpoints").iterdir())
        assert left == ["round_0001"]


@pytest.mark.parametrize("how", ["replaced by a file", "replaced by another run"])
def test_without_a_place_to_write_the_results_are_still_returned(
    how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected, folder = run(tmp_path / "whole", *SCAFFOLD), tmp_path / "run"
    caplog.clear()
    result = vandalised(folder, how)
    (warning,) = warnings(caplog)
    assert warning.startswith(f"{folder}: was deleted or moved; nothing is saved any more (")
    assert result.summary["weights_digest"] == expected[0]
    assert result.metrics["round"].tolist() == [1, 2, 3, 4]
    assert {path.name for path in folder.glob("*")} <= {"run.json", "figures"}


def test_lost_client_states_end_the_run_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^clients\.ram_gib: .*failed .*No such file"):
        vandalised(tmp_path / "run", "deleted", "clients.ram_gib=0.00001")
