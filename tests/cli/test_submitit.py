"""``hydra/launcher=submitit_local``, and what ``hydra/launcher=slurm`` asks of SLURM."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
import pytest
import submitit
from hydra.core.utils import JobReturn, JobStatus
from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
from omegaconf import DictConfig, OmegaConf
from submitit.local.local import LocalJob

from fedexp.cli.callbacks import AdaptPlugins
from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.runtime import limits
from hydra_plugins.fedexp_submitit import LocalLauncher, SlurmLauncher

TINY = ["algorithm=fedavg", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "data.subset=300"]


def composed(folder: Path, launcher: str) -> DictConfig:
    overrides = [f"hydra/launcher={launcher}", f"hydra.sweep.dir={folder}"]
    with initialize(config_folder()):
        config = hydra.compose("config", overrides, return_hydra_config=True)
    AdaptPlugins().on_multirun_start(config)
    return config


def test_what_slurm_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "srun").touch(mode=0o755)  # where there is none, submitit says so
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    asked: list[str] = []

    def submit(executor: Any, function: Any, *arguments: Any) -> list[Any]:
        asked.append(executor._executor._make_submission_file_text("command", "id"))
        return []

    monkeypatch.setattr(submitit.AutoExecutor, "map_array", submit)
    config = composed(tmp_path, "slurm")
    options: Any = OmegaConf.to_container(config.hydra.launcher, resolve=True)
    assert options.pop("_target_") == "hydra_plugins.fedexp_submitit.SlurmLauncher"
    launcher = SlurmLauncher(**options)
    launcher.config = config
    assert launcher.launch([["seed=0"], ["seed=1"]], 0) == []
    (script,) = asked
    for line in ("--time=240", "--signal=USR2@300", "--gpus-per-node=1", "--mem=16GB"):
        assert f"#SBATCH {line}\n" in script


def test_the_local_launcher_is_fedexp_s_own_too(tmp_path: Path) -> None:
    launcher = composed(tmp_path, "submitit_local").hydra.launcher
    assert launcher._target_ == "hydra_plugins.fedexp_submitit.LocalLauncher"


def test_a_job_without_a_result_is_named_and_the_others_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is killed writes no result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(limits.Sweep, "has_left_jobs", False)

    def launch(*_: object) -> list[JobReturn]:
        job = LocalJob(tmp_path / "jobs", "7", process=subprocess.Popen(["false"]))
        job._results_timeout_s = 0
        job.paths.stderr.parent.mkdir(parents=True)
        job.paths.stderr.write_text("Killed")
        return [job.results()[0], JobReturn(status=JobStatus.COMPLETED)]

    monkeypatch.setattr(BaseSubmititLauncher, "launch", launch)
    launcher = LocalLauncher()
    launcher.config = OmegaConf.create({"hydra": {"sweep": {"dir": "sweep"}}})
    lost, other = launcher.launch([["seed=0"], ["seed=1"]], 0)
    assert math.isnan(lost.return_value)
    assert other.return_value is None
    assert caplog.messages[-1:] == ["job 7 left no result; its output: jobs/7_0_log.err"]
    assert limits.Sweep.has_left_jobs


@pytest.mark.parametrize("queued", [True, False])
def test_a_signal_to_a_queued_job_ends_that_job_alone(
    queued: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    monkeypatch.delenv("SUBMITIT_EXECUTOR", raising=False)
    with limits.limited_sweep(tmp_path, None):
        if queued:
            monkeypatch.setenv("SUBMITIT_EXECUTOR", "local")
        signal.signal(signal.SIGUSR2, lambda number, _: received.append(number))
        with pytest.raises(SystemExit) if queued else nullcontext():
            limits.end_job_or_sweep("SIGUSR2")
        assert received == ([signal.SIGUSR2] if queued else [])
        assert limits.reason_to_stop_sweep() == (None if queued else "SIGUSR2")
        limits.end_job_or_sweep("limits.minutes=5")  # is the whole sweep's
        assert limits.reason_to_stop_sweep() is not None


def workers(sweep: Path) -> list[int]:
    """The processes that train the jobs: children of the controllers, which name the folders."""
    controllers = {path.name for path in (sweep / ".submitit").iterdir()}
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True).stdout
    rows = [row.split() for row in table.splitlines()]
    return [int(pid) for pid, parent in rows if parent in controllers]


@pytest.mark.slow
def test_a_job_whose_time_is_up_is_queued_again_and_goes_on(
    tmp_path: Path,
) -> None:
    """submitit's own signal in the middle of a run, for which the sweep waits."""
    sweep = tmp_path / "sweep"
    command = [sys.executable, "-m", "fedexp.train", "-m", "seed=0", *TINY, "rounds=50"]
    command += ["hydra/launcher=submitit_local", f"hydra.sweep.dir={sweep}"]
    run = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    metrics = sweep / "0" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert run.poll() is None, run.communicate()
        time.sleep(0.1)
    (worker,) = workers(sweep)
    os.kill(worker, signal.SIGUSR2)
    out, error = run.communicate(timeout=500)
    assert run.returncode == 0, error
    assert (sweep / "sweep.csv").exists()
    assert "Failed" not in out
    (log,) = (sweep / ".submitit").glob("*/*_log.out")
    assert log.read_text().count("Starting with JobEnvironment") == 2  # it was queued again
    summary = json.loads((sweep / "0" / "summary.json").read_text())
    assert summary["rounds"] == 50
    rounds = [json.loads(line)["round"] for line in metrics.read_text().splitlines()]
    assert rounds == list(range(1, 51))  # and went on where it was
