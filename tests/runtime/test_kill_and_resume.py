"""Runs that are killed (SIGKILL) at random points and resumed end as if nothing had happened."""

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import PROCESSES
from support.short_runs import outcome

import fedexp

SMALL = [
    *["rounds=4", "clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=200"],
    *["checkpoint.every=1", "measure.personal.every=2", "resume=auto"],
    *["tracking.wandb.mode=disabled", "tracking.progress=false"],
]
METHODS = [
    "fedavg",
    "fednh",
    "fedsc",
    "fedgela",
    "fedptr",
    "fedptr_s",
    "scaffold",
    "creff",
    "fedgen",
]
PLAIN = ["optimizer.momentum=0", "optimizer.weight_decay=0"]
CHANGES_FILES = ("open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate")


def run(folder: Path, overrides: list[str], where: str, deadly: int) -> None:
    """A run that dies at its ``deadly``-th touch of a file below ``folder`` with this name."""
    touches = 0

    def touch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touches
        if event in CHANGES_FILES and isinstance(arguments[0], str | Path):
            path = str(arguments[0])
            touches += path.startswith(str(folder)) and where in path
            if deadly and touches == deadly:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(touch)
    fedexp.run([f"hydra.run.dir={folder}", *SMALL, *overrides])


def ended(folder: Path, overrides: list[str], where: str = "", deadly: int = 0) -> int:
    """The exit code of such a run; with ``deadly`` 0 it lives."""
    process = PROCESSES.Process(target=run, args=(folder, overrides, where, deadly))
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


def check_that_kills_leave_no_trace(tmp_path: Path, overrides: list[str]) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert ended(whole, overrides) == 0
    draw = random.Random(" ".join(overrides))
    anywhere = [("", draw.randint(1, 150)) for _ in range(2)]
    while_one_is_written = (f"round_000{draw.randint(2, 4)}.tmp", draw.randint(1, 18))
    # A checkpoint is written with at least 23 touches, so this kill always comes.
    assert ended(killed, overrides, *while_one_is_written) == -signal.SIGKILL
    for where, deadly in [*anywhere, ("summary.json", 3)]:
        ended(killed, overrides, where, deadly)  # it may end before that touch
    assert ended(killed, overrides) == 0
    assert outcome(killed) == outcome(whole)
    assert not list(killed.rglob("*.tmp"))


def test_a_killed_run_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    check_that_kills_leave_no_trace(tmp_path, ["algorithm=scaffold", *PLAIN])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorized"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_survives(method: str, engine: str, tmp_path: Path) -> None:
    check_that_kills_leave_no_trace(tmp_path, [f"algorithm={method}", f"engine={engine}", *PLAIN])


@pytest.mark.slow
def test_the_samplers_history_survives(tmp_path: Path) -> None:
    check_that_kills_leave_no_trace(tmp_path, ["sampler=hics", "regularizer=dynamic"])


@pytest.mark.slow
def test_the_models_that_the_server_keeps_survive(tmp_path: Path) -> None:
    spilled = ["aggregator.memory=2", "clients.ram_gib=0.00001"]
    check_that_kills_leave_no_trace(tmp_path, ["algorithm=fedcda", "aggregator.warmup=1", *spilled])
    assert not list(tmp_path.rglob("clients_*"))


@pytest.mark.slow
def test_from_the_first_checkpoint_to_the_end(tmp_path: Path) -> None:
    """Every sixth touch of a file under ``checkpoints`` is deadly in one of the runs."""
    overrides = ["algorithm=fedavg", "rounds=2", "checkpoint.keep=1"]
    whole = tmp_path / "whole"
    assert ended(whole, overrides) == 0
    for deadly in range(1, 200, 6):
        folder = tmp_path / str(deadly)
        if ended(folder, overrides, "checkpoints", deadly) == 0:
            break
        assert ended(folder, overrides) == 0
        assert outcome(folder) == outcome(whole)
    assert deadly > 30
