"""Commands whose output nobody reads: silent, with the exit code of other tools."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

SCRIPTS = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
COMMANDS = {name: place.partition(":")[0] for name, place in SCRIPTS["scripts"].items()}
TINY = ["rounds=1", "clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=300"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "hydra.run.dir=run"]


def in_a_closed_pipe(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """``python ARGUMENTS | true``; its standard error and its exit code."""
    python = " ".join(f"'{each}'" for each in (sys.executable, *arguments))
    line = f"(sleep 0.2; {python}) | true; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True)


@pytest.mark.matrix
@pytest.mark.parametrize("command", COMMANDS)
def test_help_that_nobody_reads(command: str, tmp_path: Path) -> None:
    done = in_a_closed_pipe(tmp_path, "-m", COMMANDS[command], "--help")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.slow
def test_a_run_whose_output_nobody_reads_writes_all_its_files(tmp_path: Path) -> None:
    done = in_a_closed_pipe(tmp_path, "-m", "fedexp.train", *TINY, "engine=serial")
    assert (done.returncode, done.stderr) == (141, "")
    assert (tmp_path / "run/summary.json").exists()


def test_a_mistake_keeps_its_exit_code(tmp_path: Path) -> None:
    code = """
import sys
from fedexp.cli.pipes import quiet_in_a_pipe
with quiet_in_a_pipe():
    print("unread", flush=True)
    sys.exit(3)
"""
    assert in_a_closed_pipe(tmp_path, "-c", code).returncode == 3


def test_every_command_is_quiet() -> None:
    for command, module in COMMANDS.items():
        source = (Path(__file__).parents[2] / (module.replace(".", "/") + ".py")).read_text()
        quiet = "@quiet_in_a_pipe()", f'@one_line_command("{command}")'
        assert any(f"{each}\ndef main(" in source for each in quiet), command
