"""Real uploads with W&B's own client to a server that fails at a chosen moment."""

import base64
import json
import logging
import os
import platform
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.request import Request, urlopen

import pytest
from support import wandb_log
from support.wandb_server import WandbServer, serving
from tracking.test_wandb import SUMMARY, settings

from fedexp.tracking import wandb_upload
from fedexp.tracking.jsonl import JsonLines, as_frame
from fedexp.tracking.tracker import Record, RunInfo, Trackers
from fedexp.tracking.wandb import WandbTracker

ROUNDS, FAILS_AT = 6, 3
RUN = "abc123"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    yield from serving(monkeypatch)


def train(folder: Path, server: WandbServer, fail: Callable[[], None]) -> float:
    """Log all rounds, each with a table; returns the seconds that the last ones waited.

    These are the rounds after the failure; the first table also imports what W&B needs for tables.
    """
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
        waited += time.monotonic() - before if each >= FAILS_AT else 0
    tracker.finish(SUMMARY)
    return waited


def is_complete(folder: Path) -> bool:
    """Whether W&B's file has the rounds of ``metrics.jsonl``."""
    (path,) = wandb_log.run_files(folder)
    rows = [
        {name: row[name] for name in ("round", "global/accuracy")}
        for row in wandb_log.history(path)
        if row["round"]  # a resumed run has a row of round 0, which is for pictures alone
    ]
    frame = as_frame((folder / "metrics.jsonl").read_bytes())
    expected = frame[["round", "global/accuracy"]].to_dict("records")
    return len(rows) == ROUNDS and rows == expected


def on_server(server: WandbServer) -> list[float]:
    """The accuracies that arrived."""
    return accuracies(server.rows.get(RUN, {}))


def accuracies(rows: dict[int, dict[str, Any]]) -> list[float]:
    """The accuracies in the rows of a run, in the order of the rounds."""
    return [rows[step]["global/accuracy"] for step in sorted(rows) if step]


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("banner", "reason"),
    [
        ("SSH-2.0-x\r\n", "SSH-2.0-x"),
        (f"HTTP/1.1 200 OK\r\n{'x' * 70_000}", "got more than 65536 bytes when reading …"),
    ],
)
def test_a_server_that_does_not_speak_http_is_a_problem_in_one_line(
    banner: str, reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with listening.accept()[0] as connection:
                connection.recv(2**16)
                connection.sendall(banner.encode())

        Thread(target=answer, daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        found = wandb_upload.server_problem(address, 10)
    assert found is not None
    assert found == f"{address} does not speak HTTP ({reason})"


@pytest.fixture
def sweep(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """What the jobs of a sweep share, empty; nothing waits at the end of the process."""
    monkeypatch.setattr(wandb_upload.atexit, "register", lambda _: None)
    shared = wandb_upload._Sweep
    for name, empty in (("silent", {}), ("pending", []), ("left", []), ("limit_s", 0.0)):
        monkeypatch.setattr(shared, name, empty)
    yield shared
    for upload in shared.pending:
        upload.stop()


def job(folder: Path, number: int) -> None:
    run = RunInfo(folder / str(number), run_id=f"job{number}", sweep="lr")
    tracker = WandbTracker(run, settings(mode="online", finish_timeout=60))
    tracker.log(Record(1, {"global/accuracy": 0.5}))
    tracker.finish(SUMMARY)


@pytest.mark.slow
def test_a_dead_server_is_found_once_in_a_sweep_and_one_command_completes_all(
    tmp_path: Path, server: WandbServer, sweep: type, caplog: pytest.LogCaptureFixture
) -> None:
    server.die()
    job(tmp_path, 0)
    deadline = time.monotonic() + 60
    while not lines(caplog) and time.monotonic() < deadline:
        time.sleep(0.05)
    job(tmp_path, 1)
    wandb_upload._finish_sweep()
    found, left = lines(caplog)
    assert "does not answer" in found
    assert left.startswith("W&B: 2 runs are not completely uploaded (")
    assert left.endswith(f"; to complete: wandb sync {tmp_path}/*/wandb")


@pytest.mark.slow
def test_the_upload_of_a_job_goes_on_beside_the_next_one(
    tmp_path: Path, server: WandbServer, sweep: type, caplog: pytest.LogCaptureFixture
) -> None:
    server.delay_s = 0.2
    for number in (0, 1):
        job(tmp_path, number)
    assert wandb_upload._Sweep.pending
    wandb_upload._finish_sweep()
    assert lines(caplog) == []
    assert [len(server.rows[f"job{number}"]) for number in (0, 1)] == [1, 1]


@pytest.mark.slow
def test_a_run_that_the_server_refuses_is_said_in_its_words(
    tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.refused.add(RUN)
    train(tmp_path, server, lambda: None)
    assert is_complete(tmp_path)
    (line,) = lines(caplog)
    assert "permission denied for abc123" in line


def resumed(folder: Path) -> RunInfo:
    """A run with one round done; its next start is another one for W&B."""
    return RunInfo(folder, run_id=RUN, resumed=True, past=[Record(1, {"global/accuracy": 1 / 8})])


def go_on(run: RunInfo) -> None:
    """Log the remaining rounds of a resumed run."""
    tracker = Trackers([JsonLines(run), WandbTracker(run, settings(mode="online", id=None))])
    for each in range(2, ROUNDS + 1):
        tracker.log(Record(each, {"global/accuracy": each / 8}))
    tracker.finish(SUMMARY)


@pytest.mark.slow
def test_a_resumed_run_that_was_deleted_on_the_server_is_one_line_with_a_command_that_works(
    tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.deleted.add(RUN)
    go_on(resumed(tmp_path))
    assert is_complete(tmp_path)
    (line,) = lines(caplog)
    assert "not completely uploaded (it was deleted on the server)" in line
    run_command(line)
    ((new_id, rows),) = server.rows.items()
    assert f"wandb sync --id {new_id} " in line
    assert accuracies(rows) == EVERYTHING


@pytest.mark.slow
def test_a_second_start_in_another_folder_is_one_line_and_its_record_replaces_the_first(
    tmp_path: Path, server: WandbServer, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    run = RunInfo(first, run_id=RUN)
    tracker = WandbTracker(run, settings(mode="online"))
    tracker.log(Record(1, {"global/accuracy": 0.0}))
    tracker.finish(SUMMARY)
    assert on_server(server) == [0.0]
    go_on(resumed(second))
    assert is_complete(second)
    assert on_server(server) == EVERYTHING
    told = f"W&B: this run was also started in {platform.node()}:{first}; "
    assert lines(caplog) == [f"{told}the record uploaded last stays"]
    caplog.clear()
    go_on(resumed(second))  # in its own folder, this is no second start
    assert lines(caplog) == []


def asked(address: str, variables: dict[str, str]) -> dict[str, Any]:
    """What a W&B server knows of a run."""
    query = (
        "query Run($entity: String, $project: String!, $name: String!) {project(name: $project, "
        "entityName: $entity) {run(name: $name) {state summaryMetrics}}}"
    )
    body = json.dumps({"query": query, "operationName": "Run", "variables": variables}).encode()
    key = base64.b64encode(f"api:{os.environ['WANDB_API_KEY']}".encode()).decode()
    headers = {"Content-Type": "application/json", "Authorization": f"Basic {key}"}
    with urlopen(Request(f"{address}/graphql", body, headers), timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)["data"]["project"]["run"]
    return found


@pytest.mark.slow
def test_any_server_that_speaks_wandb_gets_the_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FEDEXP_WANDB_SERVER is its address, FEDEXP_WANDB_KEY a key of a user."""
    if not (address := os.environ.get("FEDEXP_WANDB_SERVER")):
        pytest.skip("FEDEXP_WANDB_SERVER does not name a W&B server")
    monkeypatch.setenv("WANDB_BASE_URL", address)
    monkeypatch.setenv("WANDB_API_KEY", os.environ.get("FEDEXP_WANDB_KEY", f"local{'0' * 36}"))
    caplog.set_level(logging.INFO)
    run = RunInfo(tmp_path, run_id=secrets.token_hex(4))
    tracker = WandbTracker(run, settings(mode="online", entity=None, finish_timeout=120))
    for each in (1, 2, 3):
        tracker.log(Record(each, {"global/accuracy": each / 8}))
    tracker.finish(SUMMARY)
    assert lines(caplog) == []
    (path,) = (each.message for each in caplog.records if "/runs/" in each.message)
    entity, project, _, name = path.split("/")[-4:]
    found = asked(address, {"entity": entity, "project": project, "name": name})
    assert found["state"] == "finished"
    last = json.loads(found["summaryMetrics"])
    assert (last["round"], last["global/accuracy"]) == (3, 0.375)
