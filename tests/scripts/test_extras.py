"""Each extra of the package is tried alone, in a new environment."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "extras.py"
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_extra_is_tried_by_the_script_and_by_the_workflow() -> None:
    listed = [sys.executable, SCRIPT, "--list"]
    found = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "extras.yml").read_text())
    assert sorted(found) == sorted(EXTRAS)
    assert sorted(workflow["jobs"]["extra"]["strategy"]["matrix"]["extra"]) == sorted(EXTRAS)


@pytest.mark.slow
@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_alone_does_what_it_is_for(extra: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, extra], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
