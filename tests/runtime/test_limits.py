"""A run or a sweep that ends before its last round, and goes on later."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.command_line import fedexp as forked
from support.federations import compose, federate
from support.short_runs import NO_PICTURES

import fedexp
from fedexp.errors import InputError
from fedexp.reporting.sweep import UNFINISHED
from fedexp.runtime.limits import Clock, limited_sweep, reason_to_stop_sweep, stop_sweep
from fedexp.runtime.plan import plan

TINY = ["algorithm=fedavg", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "data.subset=300", *NO_PICTURES]
SOON = "limits.minutes=0.00001"


def run(folder: Path, *overrides: str) -> fedexp.RunResult:
    return fedexp.run([*TINY, "rounds=3", f"hydra.run.dir={folder}", *overrides])


def test_training_ends_where_it_is_told_to() -> None:
    federation = federate("clients.count=4", "clients.per_round=2", "local.epochs=1")
    assert federation.run(5, stops_after=lambda round: round == 2) == 2
    assert federation.run(4, done=2) == 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_run_whose_time_is_up_goes_on_to_the_same_bits(engine: str, tmp_path: Path) -> None:
    method, engine = "algorithm=scaffold", f"engine={engine}"
    whole = run(tmp_path / "whole", method, engine)
    assert whole.stopped is None
    folder = tmp_path / "stopped"
    first = run(folder, method, engine, SOON)
    assert first.stopped == "limits.minutes=1e-05"
    assert first.summary["rounds"] == 1
    assert len(first.metrics) == 1
    assert first.objective("global/accuracy") == whole.metrics["global/accuracy"].iloc[0]
    second = run(folder, method, engine, SOON, f"resume={folder}")
    assert (second.summary["rounds"], second.stopped) == (2, "limits.minutes=1e-05")
    last = run(folder, method, engine, f"resume={folder}")  # the limit may change
    assert (last.summary["rounds"], last.stopped) == (3, None)
    assert last.summary["weights_digest"] == whole.summary["weights_digest"]


def test_a_limit_that_comes_with_the_last_round_stops_nothing(tmp_path: Path) -> None:
    done = run(tmp_path / "run", SOON, "rounds=1")
    assert (done.summary["rounds"], done.stopped) == (1, None)


@pytest.mark.parametrize("minutes", ["0", "-1", "soon"])
def test_a_limit_is_a_time(minutes: str) -> None:
    with pytest.raises(InputError, match=rf"limits\.minutes={minutes}"):
        compose(f"limits.minutes={minutes}")


def test_a_limit_needs_checkpoints() -> None:
    with pytest.raises(InputError, match=r"limits\.minutes=5: needs checkpoint\.keep"):
        plan(compose("limits.minutes=5", "checkpoint.keep=0"))


def test_without_a_limit_no_time_is_up() -> None:
    assert Clock(None).reason_to_stop() is None
    assert Clock(60).reason_to_stop() is None
    assert Clock(1e-9).reason_to_stop() == "limits.minutes=1e-09"


def test_the_jobs_of_a_sweep_share_its_clock_and_its_end(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with limited_sweep(tmp_path, 1e-9):
        assert Clock(60).reason_to_stop() == "limits.minutes=1e-09"  # since the sweep began
    with limited_sweep(tmp_path, None):
        assert Clock(1e-9).reason_to_stop() is None
        stop_sweep("a reason")
        assert Clock(60).reason_to_stop() == reason_to_stop_sweep() == "a reason"
    with limited_sweep(tmp_path, 60):
        assert reason_to_stop_sweep() is None  # that of the last sweep is no longer there
        os.kill(os.getpid(), signal.SIGTERM)
        assert reason_to_stop_sweep() == "SIGTERM"
    assert reason_to_stop_sweep() is None
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) == before


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fedexp.train", *arguments, *TINY],
        cwd=folder,
        capture_output=True,
        text=True,
    )


def summaries(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        path.parent.name: json.loads(path.read_text())
        for path in sorted(folder.glob("multirun/*/*/*/summary.json"))
    }


def test_a_sweep_without_checkpoints_may_have_a_time_limit(tmp_path: Path) -> None:
    typed = ["-m", "seed=0", "rounds=1", "checkpoint.keep=0", "limits.minutes=60", *TINY]
    done = forked(*typed, folder=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        [],
        ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    ],
    ids=["one job at a time", "two processes"],
)
def test_a_sweep_whose_time_is_up_names_what_has_not_run(
    launcher: list[str], tmp_path: Path
) -> None:
    sweep = ["-m", "seed=0,1,2", "resume=auto", *launcher]
    minutes = 0.3 if launcher else 0.1  # on a slow machine no job may have begun by then
    stopped = command(tmp_path, *sweep, "rounds=100000", f"limits.minutes={minutes}")
    assert stopped.returncode == UNFINISHED, stopped.stderr
    (folder,) = tmp_path.glob("multirun/*/*")
    begun = summaries(tmp_path)
    named = [each for each in stopped.stdout.splitlines() if each.startswith("Not run: ")]
    assert len(named) == 3 - len(begun)
    assert all("seed=" in each for each in named)
    assert "Failed" not in stopped.stdout
    last = stopped.stderr.splitlines()[-1]
    assert last == (
        f"fedexp: limits.minutes={minutes:g}: the sweep stopped; to go on, add "
        f"resume={folder.relative_to(tmp_path)} (or resume=auto) to the same command"
    )
    longest = max((each["rounds"] for each in begun.values()), default=0)
    resumed = command(tmp_path, *sweep, f"rounds={longest + 1}")
    assert resumed.returncode == 0, resumed.stderr
    assert [each["rounds"] for each in summaries(tmp_path).values()] == [longest + 1] * 3
    assert list(tmp_path.glob("multirun/*/*")) == [folder]


def signalled(
    folder: Path, number: signal.Signals, begun: Callable[[], bool], *arguments: str
) -> tuple[int, str, str]:
    started = subprocess.Popen(
        [sys.executable, "-m", "fedexp.train", *arguments, *TINY, "rounds=100000"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not begun():
        assert started.poll() is None
        time.sleep(0.1)
    started.send_signal(number)
    out, error = started.communicate(timeout=200)
    return started.returncode, out, error


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [[], ["hydra/launcher=joblib"]],
    ids=["one job at a time", "two processes"],
)
def test_a_signal_ends_a_sweep_with_its_table(launcher: list[str], tmp_path: Path) -> None:
    def begun() -> bool:
        found = tmp_path.glob("multirun/*/*/0/metrics.jsonl")
        return any(path.stat().st_size for path in found)

    sweep = ["-m", "seed=0,1", *launcher]
    code, out, error = signalled(tmp_path, signal.SIGUSR1, begun, *sweep)
    assert code == UNFINISHED, error
    (folder,) = tmp_path.glob("multirun/*/*")
    assert (folder / "sweep.csv").exists()
    assert "Failed" not in out
    assert ("Not run: seed=1" in out) == (not launcher)
    assert error.splitlines()[-1].startswith("fedexp: SIGUSR1: the sweep stopped; to go on, add")


@pytest.mark.slow
def test_one_rank_s_time_ends_every_rank(tmp_path: Path) -> None:
    ranks = ["engine.devices=2", "engine.device=cpu"]
    done = run(tmp_path / "run", SOON, *ranks)
    assert (done.summary["rounds"], done.stopped) == (1, "limits.minutes=1e-05")
    rest = run(tmp_path / "run", *ranks, "limits.minutes=null", f"resume={tmp_path / 'run'}")
    whole = run(tmp_path / "whole", *ranks)
    assert rest.summary["weights_digest"] == whole.summary["weights_digest"]
