"""Ctrl-C as a terminal sends it, to every process of a sweep."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.killed_runs import living

from fedexp.runtime.interrupts import in_worker
from fedexp.runtime.sweep_interrupts import unblock_interrupts

TINY = ["clients.count=4", "clients.per_round=2", "local.epochs=1", "measure.personal=null"]
TINY += ["tracking.wandb.mode=disabled", "hydra/launcher=joblib"]
CTRL_C = {signal.SIGINT}


@pytest.fixture
def blocked() -> Iterator[None]:
    """This thread as the main one of a worker between two jobs."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, CTRL_C)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    signal.signal(signal.SIGINT, handler)


def is_blocked() -> bool:
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.usefixtures("blocked")
def test_what_was_held_back_comes_first() -> None:
    signal.raise_signal(signal.SIGINT)
    begun = False
    with pytest.raises(KeyboardInterrupt), unblock_interrupts():
        begun = True
    assert not begun
    assert is_blocked()


@pytest.mark.usefixtures("blocked")
def test_what_comes_within_comes_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), unblock_interrupts():
        signal.raise_signal(signal.SIGINT)
    with unblock_interrupts():
        assert not is_blocked()
    assert is_blocked()


def test_the_main_process_is_no_worker() -> None:
    assert not in_worker()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "processes_at_work"),
    [("0,1,2", 2), ("0,1", 3)],
    ids=["one job waits", "one process is idle"],
)
def test_one_ctrl_c_ends_a_sweep_that_goes_on_later(
    seeds: str, processes_at_work: int, tmp_path: Path
) -> None:
    sweep = [f"seed={seeds}", *TINY, f"hydra.launcher.n_jobs={processes_at_work}"]
    command = [sys.executable, "-m", "fedexp.train", "-m"]
    run = subprocess.Popen(
        [*command, "rounds=100000", *sweep],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while len(begun := list(tmp_path.glob("multirun/*/*/[01]/metrics.jsonl"))) < 2 or any(
            not path.stat().st_size for path in begun
        ):
            assert run.poll() is None
            time.sleep(0.1)
        os.killpg(run.pid, signal.SIGINT)
        _, said = run.communicate(timeout=200)
        deadline = time.monotonic() + 60
        while living(run.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert living(run.pid) == []
    finally:
        if living(run.pid):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.returncode == 130
    folder = begun[0].parent.parent
    assert list(filter(None, said.splitlines())) == [
        "fedexp: presets set besides their parts: fednh local.grad_clip=10",
        "fedexp: stopping when this round is done and saved; a second time stops at once",
        f"fedexp: interrupted; to go on, add resume={folder.relative_to(tmp_path)} "
        "(or resume=auto) to the same command",
    ]
    assert {path.name for path in folder.iterdir() if path.is_dir()} == {"0", "1"}
    done = {path.parent.name: len(path.read_text().splitlines()) for path in begun}
    for job, rounds in done.items():
        newest = max(path.name for path in (folder / job / "checkpoints").iterdir())
        assert newest == f"round_{rounds:04d}"

    rounds = max(done.values()) + 1
    resumed = subprocess.run(
        [*command, f"rounds={rounds}", *sweep, "resume=auto"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert resumed.returncode == 0, resumed.stderr
    for job, finished in done.items():
        assert f"{job} goes on after round {finished}" in resumed.stderr
    summaries = sorted(folder.glob("*/summary.json"))
    assert [path.parent.name for path in summaries] == seeds.split(",")
    assert {json.loads(path.read_text())["rounds"] for path in summaries} == {rounds}
