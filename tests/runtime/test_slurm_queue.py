"""What a sweep says about its waiting jobs, with commands that answer as SLURM's do."""

import logging
import os
import time
from pathlib import Path

import pytest

from fedexp.runtime.slurm_queue import held, watch_queue


def test_only_reasons_that_need_a_person_are_told() -> None:
    lines = ["7_[2-3] (Resources)", "7_0 PartitionTimeLimit", "8_1 (PartitionTimeLimit)", "9 None"]
    assert held([*lines, "9_4 ReqNodeNotAvail, UnavailableNodes:node3", ""]) == {
        "PartitionTimeLimit": ["7_0", "8_1"],
        "ReqNodeNotAvail, UnavailableNodes:node3": ["9_4"],
    }


def test_each_reason_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = tmp_path / "asked"
    script = f'#!/bin/sh\necho "$@" >> {asked}\necho "9 Held"\necho "12_[0-1] PartitionTimeLimit"\n'
    (tmp_path / "squeue").write_text(script)
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("12_0", "12_1"):
        (tmp_path / "jobs" / name).mkdir(parents=True)
    with watch_queue(tmp_path / "jobs", poll_s=0.01):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and (
            not asked.exists() or len(asked.read_text().splitlines()) < 3
        ):
            time.sleep(0.01)
    assert [each.message for each in caplog.records if "SLURM" in each.message] == [
        "SLURM holds 12_[0-1]: PartitionTimeLimit; hydra.launcher.timeout_min is more than "
        "hydra.launcher.partition allows"
    ]


def test_accounting_that_fails_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("submitit")
    with watch_queue(tmp_path):
        for call in (1, 2, 3):
            logger.warning("Call #%d - Bypassing sacct error, status may be inaccurate.", call)
        logger.warning("another")
    assert [each.message for each in caplog.records if each.name == "submitit"] == [
        "Call #1 - Bypassing sacct error, status may be inaccurate.",
        "another",
    ]
