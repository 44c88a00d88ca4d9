"""Runs that are killed at random moments and resumed end as if nothing had happened."""

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from support.command_line import PROCESSES
from support.killed_runs import living
from support.short_runs import SHORT, Outcome, outcome

from fedexp.state.folder_lock import is_busy

ROUNDS = 12
SCAFFOLD = ["algorithm=scaffold", "optimizer.momentum=0", "optimizer.weight_decay=0"]
LONG = [*SHORT, *SCAFFOLD, f"rounds={ROUNDS}", "resume=auto"]
MODES = {
    "serial": [],
    "vectorized": ["engine=vectorized"],
    "spilled": ["clients.ram_gib=0.00001"],
    "two ranks": ["engine.devices=2", "engine.device=cpu"],
}
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


def launch(folder: Path, overrides: list[str]) -> None:
    """In a process of its own: the command line, as if a user had typed it."""
    os.setsid()
    multiprocessing.current_process().name = "MainProcess"  # not a worker of a sweep
    for number, name in enumerate(("stdout", "stderr"), start=1):
        path = folder.with_name(f"{folder.name}.{name}")
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["fedexp", *LONG, *overrides, f"hydra.run.dir={folder}"]
    from fedexp.train import main

    main()


def start(folder: Path, overrides: list[str]) -> BaseProcess:
    process = PROCESSES.Process(target=launch, args=(folder, overrides))
    process.start()
    return process


def wait_for_end(session: int, folder: Path) -> None:
    """All processes of the session have ended, and the folder's lock is free."""
    deadline = time.monotonic() + 120
    while living(session) or is_busy(folder):
        assert time.monotonic() < deadline, living(session)
        time.sleep(0.1)


def whole(folder: Path, overrides: list[str]) -> tuple[Outcome, float]:
    """The outcome of a run that nobody kills, and its seconds."""
    begun = time.monotonic()
    process = start(folder, overrides)
    process.join()
    assert process.exitcode == 0, folder.with_name(f"{folder.name}.stderr").read_text()
    return outcome(folder), time.monotonic() - begun


def check_kills(mode: str, kills: int, tmp_path: Path) -> Counter[str]:
    """Kill a run at random moments, each time resume it, and let it end."""
    overrides, folder, draw = MODES[mode], tmp_path / "killed", random.Random(mode)
    expected, seconds = whole(tmp_path / "whole", overrides)
    counts: Counter[str] = Counter()
    while sum(counts.values()) < kills:
        begun, process, how = time.monotonic(), start(folder, overrides), draw.choice(SIGNALS)
        process.join(draw.uniform(0.1, 1) * seconds)
        if process.exitcode is not None:  # it has ended: begin another one
            seconds = min(seconds, time.monotonic() - begun)  # the first run also loads libraries
            assert process.exitcode == 0
            assert outcome(folder) == expected
            folder = folder.with_name(f"{folder.name}+")
            continue
        assert process.pid is not None
        with suppress(ProcessLookupError):  # it has ended just now
            os.kill(process.pid, how)
        process.join()
        wait_for_end(process.pid, folder)
        counts[how.name] += 1
        said = folder.with_name(f"{folder.name}.stderr").read_text()
        assert "Traceback" not in said, said
    process = start(folder, overrides)
    process.join()
    assert process.exitcode == 0
    assert outcome(folder) == expected
    assert not list(folder.rglob("*.tmp"))
    assert not list(folder.glob("clients_*"))
    return counts


@pytest.mark.slow
def test_a_few_kills(tmp_path: Path) -> None:
    assert sum(check_kills("serial", 2, tmp_path).values()) == 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_many_kills(mode: str, tmp_path: Path) -> None:
    counts = check_kills(mode, 6 if mode == "two ranks" else 12, tmp_path)
    print(f"{mode}: {dict(counts)}")


SWEEP = [sys.executable, "-m", "fedexp.train", "-m", *SHORT, *SCAFFOLD, "seed=0,1,2"]
SWEEP += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "hydra.sweep.dir=sweep"]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_workers_of_a_killed_sweep_end_with_it(how: signal.Signals, tmp_path: Path) -> None:
    """They used to train on, deaf to SIGTERM, and to hold their folders."""
    draw, endless = random.Random(how), "rounds=100000"
    sweep = subprocess.Popen(
        [*SWEEP, endless],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while len([p for p in tmp_path.glob("sweep/*/metrics.jsonl") if p.stat().st_size]) < 2:
            assert sweep.poll() is None, sweep.stderr
            time.sleep(0.1)
        time.sleep(draw.uniform(0, 2))
        os.kill(sweep.pid, how)
        deadline = time.monotonic() + 60
        while living(sweep.pid):
            assert time.monotonic() < deadline, living(sweep.pid)
            time.sleep(0.1)
    finally:
        if living(sweep.pid):
            os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    folders = sorted((tmp_path / "sweep").glob("[0-9]"))
    assert not any(is_busy(folder) for folder in folders)
    done = [len((folder / "metrics.jsonl").read_text().splitlines()) for folder in folders]
    assert len(done) == 2  # the third job did not begin
    for folder, rounds in zip(folders, done, strict=True):
        newest = max(path.name for path in (folder / "checkpoints").glob("round_*"))
        assert newest == f"round_{rounds:04d}"
    end = f"rounds={max(done) + 2}"
    resumed = subprocess.run(
        [*SWEEP, end, "resume=sweep"], cwd=tmp_path, capture_output=True, text=True
    )
    assert resumed.returncode == 0, resumed.stderr
    for seed in range(3):
        summary = json.loads((tmp_path / f"sweep/{seed}/summary.json").read_text())
        assert summary["rounds"] == max(done) + 2
    print(f"{how.name} of a sweep's parent: jobs ended after rounds {done}, resumed to {end}")


@pytest.mark.slow
def test_a_worker_that_gets_sigterm_stops_its_sweep(tmp_path: Path) -> None:
    sweep = subprocess.Popen(
        [*SWEEP, "rounds=100000"],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        locks = []
        while len(locks) < 2 or any(not p.with_name("metrics.jsonl").exists() for p in locks):
            assert sweep.poll() is None
            locks = [p for p in tmp_path.glob("sweep/*/.lock") if p.stat().st_size]
            time.sleep(0.1)
        os.kill(int(locks[0].read_text().split()[0]), signal.SIGTERM)
        _, said = sweep.communicate(timeout=120)
    finally:
        if living(sweep.pid):
            os.killpg(sweep.pid, signal.SIGKILL)
    assert "Traceback" not in said
    assert "SIGTERM" in said
    assert "to go on, add resume=" in said
