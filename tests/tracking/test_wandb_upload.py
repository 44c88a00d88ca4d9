"""Real uploads with W&B's own client to a server that fails at a chosen moment."""

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import wandb_log
from support.wandb_server import WandbServer
from tracking.test_wandb import SUMMARY, settings

from fedexp.tracking.jsonl import JsonLines, read_metrics
from fedexp.tracking.tracker import Record, RunInfo, Trackers
from fedexp.tracking.wandb import WandbTracker

ROUNDS, FAILS_AT = 6, 3
RUN = "abc123"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    started = WandbServer()
    monkeypatch.setenv("WANDB_BASE_URL", started.address)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    yield started
    started.status = 401  # what still asks gives up
    started.die()


def train(folder: Path, server: WandbServer, fail: Callable[[], None]) -> float:
    """Log all rounds, each with a table; returns the seconds for which the rounds waited."""
    run = RunInfo(folder, run_id=RUN)
    online = settings(mode="online", finish_timeout=60)
    tracker = Trackers([JsonLines(run), WandbTracker(run, online)])
    waited = 0.0
    for each in range(1, ROUNDS + 1):
        if each == FAILS_AT:
            deadline = time.monotonic() + 60
            while RUN not in server.begun and time.monotonic() < deadline:
                time.sleep(0.05)
            fail()
        record = Record(
            each, {"global/accuracy": each / 8}, tables={"clients": {"client": [0, each]}}
        )
        before = time.monotonic()
        tracker.log(record)
        waited += time.monotonic() - before
    tracker.finish(SUMMARY)
    return waited


def is_complete(folder: Path) -> bool:
    """Whether W&B's file has the rounds of ``metrics.jsonl``."""
    (path,) = wandb_log.run_files(folder)
    rows = [
        {name: row[name] for name in ("round", "global/accuracy")}
        for row in wandb_log.history(path)
    ]
    expected = read_metrics(folder)[["round", "global/accuracy"]].to_dict("records")
    return len(rows) == ROUNDS and rows == expected


def on_server(server: WandbServer) -> list[float]:
    """The accuracies that arrived, in the order of the rounds."""
    rows = server.rows.get(RUN, {})
    return [rows[step]["global/accuracy"] for step in sorted(rows)]


EVERYTHING = [each / 8 for each in range(1, ROUNDS + 1)]


def run_command(line: str) -> None:
    """Run the ``wandb sync`` that the line names."""
    command = shlex.split(line.partition("to complete: ")[2])
    assert command[:2] == ["wandb", "sync"]
    own = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    subprocess.run([sys.executable, "-m", *command], env=own, check=True, timeout=60)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.levelno == logging.WARNING]


def test_a_server_that_works_gets_everything_during_the_run(
    tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    waited = train(tmp_path, server, lambda: setattr(server, "delay_s", 0.1))
    assert waited < 5
    assert is_complete(tmp_path)
    assert on_server(server) == EVERYTHING
    assert lines(caplog) == []


def test_a_server_that_dies_costs_nothing_and_the_printed_command_completes_the_record(
    tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    waited = train(tmp_path, server, server.die)
    assert waited < 5  # W&B's client alone waits 15 s for a table
    assert is_complete(tmp_path)
    (line,) = lines(caplog)
    assert line.startswith("W&B: this run is not completely uploaded (http://127.0.0.1:")
    server.start()
    run_command(line)
    assert on_server(server) == EVERYTHING


@pytest.mark.slow
@pytest.mark.parametrize("status", [401, 429, 500])
def test_a_server_that_refuses_costs_nothing(
    status: int, tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    waited = train(tmp_path, server, lambda: setattr(server, "status", status))
    assert waited < 5
    assert is_complete(tmp_path)
    (line,) = lines(caplog)
    assert "not completely uploaded" in line
    server.status = 200
    run_command(line)
    assert on_server(server) == EVERYTHING


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [1.5, 60])
def test_a_server_that_is_late_costs_nothing(
    delay_s: float, tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    waited = train(tmp_path, server, lambda: setattr(server, "delay_s", delay_s))
    assert waited < 5
    assert is_complete(tmp_path)
    if delay_s < 60:
        assert on_server(server) == EVERYTHING
        return
    (line,) = lines(caplog)
    assert "does not answer" in line
    server.delay_s = 0
    run_command(line)
    assert on_server(server) == EVERYTHING
