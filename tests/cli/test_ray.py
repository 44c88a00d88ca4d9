"""``hydra/launcher=ray``: a sweep whose jobs Ray runs, on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hydra_plugins.hydra_ray_launcher", reason="the extra ray is not installed")
TINY = ["rounds=1", "clients.count=4", "clients.per_round=2", "local.epochs=1"]


@pytest.mark.slow
def test_a_sweep_of_two_jobs(tmp_path: Path) -> None:
    ray = [f"+hydra.launcher.ray.init.{each}" for each in ("num_cpus=1", "include_dashboard=false")]
    sweep = [sys.executable, "-m", "fedexp.train", "-m", "hydra/launcher=ray", "seed=0,1", *TINY]
    done = subprocess.run([*sweep, *ray], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (folder,) = tmp_path.glob("multirun/*/*")
    seen = [json.loads((folder / job / "summary.json").read_text()) for job in ("0", "1")]
    assert len({summary["weights_digest"] for summary in seen}) == 2
    assert (folder / "sweep.csv").exists()
