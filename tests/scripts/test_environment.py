"""scripts/environment.sh: which clone is installed in a shared environment."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(clone: Path, venv: Path) -> None:
    command = f'source "{clone}/scripts/environment.sh"; ensure_environment ""'
    environment = {**os.environ, "FEDEXP_VENV": str(venv)}
    subprocess.run(["bash", "-c", command], env=environment, check=True, capture_output=True)


def test_two_clones_that_share_an_environment_install_themselves_in_turn(tmp_path: Path) -> None:
    """The environment's Python only writes down how it is called."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\n')
    python.chmod(0o755)
    clones = [tmp_path / name for name in ("one", "two")]
    for clone in clones:
        (clone / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "environment.sh", clone / "scripts")
        (clone / "pyproject.toml").touch()
    one, two = clones
    for clone in (one, one, two, two, one):
        install(clone, tmp_path / "venv")
    installed = [line.split()[-1] for line in (tmp_path / "calls").read_text().splitlines()]
    assert installed == [str(one), str(two), str(one)]
