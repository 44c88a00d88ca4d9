"""``origin.json``, and runs that are resumed after the code of a part has changed."""

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from support.short_runs import SHORT, contents

import fedexp
from fedexp.core.server import Server
from fedexp.errors import InputError
from fedexp.runtime.federation import Federation
from fedexp.tracking import origin as origin_file

LOSS = """from fedexp.losses.cross_entropy import CrossEntropy
class Scaled(CrossEntropy):
    def forward(self, batch):
        return {} * super().forward(batch)
"""


class OwnLoss:
    """A run with a loss whose code can change."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder / "run", folder / "changing_loss.py"
        self.write(1.0)

    def write(self, scale: float) -> None:
        self.file.write_text(LOSS.format(scale))

    def run(self, rounds: int, *overrides: str) -> dict[str, Any]:
        """Start or resume the run as a new process would; its summary."""
        sys.modules.pop("changing_loss", None)
        own = ["loss._target_=changing_loss.Scaled", f"rounds={rounds}", "resume=auto"]
        return fedexp.run([*SHORT, *own, f"hydra.run.dir={self.folder}", *overrides]).summary

    @property
    def starts(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((self.folder / "origin.json").read_text())[
            "starts"
        ]
        return found


@pytest.fixture
def own_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnLoss:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # equal times and sizes hide a change
    return OwnLoss(tmp_path)


def test_a_run_says_where_it_comes_from_and_names_no_machine(own_loss: OwnLoss) -> None:
    own_loss.run(1)
    (start,) = own_loss.starts
    assert start["from_round"] == 1
    assert start["fedexp"]["version"] == fedexp.__version__
    assert start["code"]["own"] == {"changing_loss.py": LOSS.format(1.0)}
    assert start["code"]["parts"]["loss"][0] == "changing_loss.py"
    assert start["data"]["train"]["samples"] == 200
    assert {"python", "torch", "processor", "threads", "device"} <= start["environment"].keys()
    text = (own_loss.folder / "origin.json").read_text()
    assert str(Path.home()) not in text.replace(LOSS, "")
    assert str(own_loss.folder.parent) not in text


def test_changed_code_is_refused_unless_it_is_accepted(own_loss: OwnLoss) -> None:
    own_loss.run(1)
    assert own_loss.run(2)["warnings"] == own_loss.run(1, "rounds=2")["warnings"]  # nothing changed
    assert [each["rounds"] for each in own_loss.starts] == [1, 2]
    own_loss.write(2.0)
    before = contents(own_loss.folder)
    line = r"loss \(changing_loss.py\) has changed since round 2; checkpoint.changed_code=accept"
    with pytest.raises(InputError, match=line):
        own_loss.run(3)
    assert contents(own_loss.folder) == before
    changed = "since round 3 with changed code: loss (changing_loss.py)"
    assert changed in own_loss.run(3, "checkpoint.changed_code=accept")["warnings"]
    assert [each["from_round"] for each in own_loss.starts] == [1, 2, 3]
    assert changed in own_loss.run(4)["warnings"]  # the accepted code goes on


def test_a_checkpoint_that_does_not_fit_leaves_the_finished_run(
    own_loss: OwnLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_loss.run(1)
    before = contents(own_loss.folder)
    monkeypatch.setattr(Server, "load_state_dict", lambda *_: 1 / 0)
    with pytest.raises(InputError, match="does not fit this run"):
        own_loss.run(2)
    assert contents(own_loss.folder) == before


def test_the_code_of_rounds_that_were_lost_does_not_count(
    own_loss: OwnLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_loss.run(1)
    own_loss.write(2.0)
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "run_round", power_cut)
        with pytest.raises(RuntimeError, match="power cut"):
            own_loss.run(2, "checkpoint.changed_code=accept")
    with pytest.raises(InputError, match="has changed since round 1;"):
        own_loss.run(2)
    own_loss.write(1.0)
    assert not any("changed code" in line for line in own_loss.run(2)["warnings"])


def power_cut(*_: object) -> None:
    raise RuntimeError("power cut")


def test_another_engine_is_no_changed_code(own_loss: OwnLoss) -> None:
    own_loss.run(1, "engine=auto")
    assert own_loss.run(2, "engine=serial")["warnings"] == []
    own_loss.write(2.0)
    with pytest.raises(InputError, match=r"the code of loss \(changing_loss.py\) has changed"):
        own_loss.run(3, "engine=vectorized")


def test_another_version_of_fedexp_is_one_line(
    own_loss: OwnLoss, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own_loss.run(1)
    other = {"version": "99.0", "commit": None}
    monkeypatch.setattr(origin_file, "fedexp_version", lambda: other)
    with caplog.at_level(logging.WARNING):
        own_loss.run(2)
    lines = [line for line in caplog.messages if "99.0" in line]
    assert lines == [
        f"resume: {own_loss.folder} began with fedexp {fedexp.__version__} and goes on with 99.0"
    ]


def test_a_run_without_the_record_goes_on(own_loss: OwnLoss) -> None:
    own_loss.run(1)
    (own_loss.folder / "origin.json").unlink()
    own_loss.write(2.0)
    own_loss.run(2)
    assert [each["from_round"] for each in own_loss.starts] == [2]
