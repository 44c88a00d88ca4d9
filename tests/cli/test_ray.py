"""``hydra/launcher=ray``: a sweep whose jobs Ray runs, on this machine."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.slurm_cluster import until

pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="the extra ray is not installed")
TINY = ["rounds=1", "algorithm=fedavg", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "data.subset=300"]
SWEEP = [sys.executable, "-m", "fedexp.train", "-m", "hydra/launcher=ray", "seed=0,1"]
SWEEP += ["+hydra.launcher.ray.init.include_dashboard=false"]

LONG = 600.0
"""Seconds that a test waits for what certainly happens."""


@pytest.mark.slow
def test_a_sweep_of_two_jobs(tmp_path: Path) -> None:
    command = [*SWEEP, *TINY, "+hydra.launcher.ray.init.num_cpus=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("multirun/*/*")
    seen = [json.loads((folder / job / "summary.json").read_text()) for job in ("0", "1")]
    assert len({summary["weights_digest"] for summary in seen}) == 2
    assert (folder / "sweep.csv").exists()


def kill_in_round(run: Path, after: int) -> None:
    """Kill the worker that trains this run, once it has trained more than ``after`` rounds."""
    until(lambda: rounds(run) > after, LONG)
    os.kill(int((run / ".lock").read_text().split()[0]), signal.SIGKILL)


def rounds(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


@pytest.mark.slow
def test_a_job_whose_worker_dies_twice_is_named_and_the_other_ends(tmp_path: Path) -> None:
    """Ray may start a job again once here; the repeated command finishes the lost job."""
    slow = ["+measure.slow._target_=support.slow_rounds.SlowRounds", "+measure.slow.seconds=1"]
    command = [*SWEEP, *TINY, *slow, "rounds=10", "hydra.sweep.dir=sweep"]
    of_ray = ("init.num_cpus=2", "remote.max_retries=1")
    command += ["checkpoint.every=1", *(f"+hydra.launcher.ray.{each}" for each in of_ray)]
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    with (tmp_path / "printed").open("w+") as printed:
        first = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=printed, stderr=subprocess.STDOUT
        )
        for after in (1, 3):
            kill_in_round(tmp_path / "sweep" / "0", after)
        code = first.wait(LONG)
    said = (tmp_path / "printed").read_text()
    assert code == 1, said
    assert said.count("job 0 left no result; The worker died unexpectedly") == 1
    assert "1 job ended early: the others are done; to go on, add resume=sweep" in said
    assert "Traceback" not in said
    assert 4 <= rounds(tmp_path / "sweep" / "0") < 10
    assert rounds(tmp_path / "sweep" / "1") == 10
    again = [*SWEEP[:4], "resume=sweep"]
    done = subprocess.run(again, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert rounds(tmp_path / "sweep" / "0") == 10
