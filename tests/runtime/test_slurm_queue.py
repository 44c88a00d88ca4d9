"""What a sweep says about its jobs in the queue, with a command that answers as ``squeue`` does."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fedexp.runtime.slurm_queue import SlurmQueue, news, queued

Answer = Callable[[str], None]


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Sets what the command ``squeue`` does, as a script of the shell."""

    def answer(script: str) -> None:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "squeue").chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return answer


def queue_of(*jobs: str) -> SlurmQueue:
    queue = SlurmQueue(poll_s=0.0)  # asks at each call
    for job in jobs:
        queue.register_job(job)
    return queue


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "SLURM" in record.message]


@pytest.mark.parametrize(
    ("before", "line", "told"),
    [
        ("UNKNOWN", "PENDING (Resources)", None),
        ("UNKNOWN", "PENDING JobArrayTaskLimit", None),
        ("PENDING", "PENDING BeginTime", None),
        ("UNKNOWN", "PENDING PartitionTimeLimit", ("holds", "PartitionTimeLimit")),
        ("PENDING", "PENDING ReqNodeNotAvail, not: a", ("holds", "ReqNodeNotAvail, not: a")),
        ("PENDING", "RUNNING None", None),
        ("RUNNING", "PENDING BeginTime", ("restarts", "it was stopped before the end")),
        ("RUNNING", "COMPLETED None", None),
        ("RUNNING", "FAILED NonZeroExitCode", ("ended", "FAILED")),
        ("FAILED", "FAILED NonZeroExitCode", None),
    ],
)
def test_only_what_a_person_should_know_is_told(
    before: str, line: str, told: tuple[str, str] | None
) -> None:
    assert news(before, *queued([f"7_2 {line}"])["7_2"]) == told


def test_each_reason_is_one_line(squeue: Answer, caplog: pytest.LogCaptureFixture) -> None:
    waits = [f"12_{each} PENDING PartitionTimeLimit" for each in range(5)]
    squeue("\n".join(f"echo '{line}'" for line in ["9 PENDING Held", *waits]))
    queue = queue_of(*(f"12_{each}" for each in range(5)))
    assert [queue.get_state("12_0") for _ in range(3)] == ["PENDING"] * 3
    assert not queue.is_done("12_4")
    assert said(caplog) == [
        "SLURM holds 12_0, 12_1, 12_2 and 2 more: PartitionTimeLimit; hydra.launcher.timeout_min "
        "is more than hydra.launcher.partition allows"
    ]


def test_a_job_that_slurm_has_ended_is_named_once(
    squeue: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of("12", "12_0", "12_1", "12_2")  # submitit registers the array, too
    squeue("echo '12_0 RUNNING None'; echo '12_1 OUT_OF_MEMORY None'; echo '12_2 COMPLETED None'")
    assert [queue.is_done(each) for each in ("12_0", "12_1", "12_2")] == [False, True, True]
    assert said(caplog) == [
        "SLURM ended 12_1: OUT_OF_MEMORY; hydra.launcher.mem_gb is the memory of a job"
    ]


def test_a_job_is_lost_if_two_answers_do_not_have_it(
    squeue: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of("12_0")
    squeue("true")
    assert [queue.is_done("12_0") for _ in range(3)] == [False, True, True]
    assert said(caplog) == ["SLURM ended 12_0: not in the queue"]


def test_a_line_may_lack_a_reason() -> None:
    assert queued(["7_2 COMPLETED", "", " 7_3  PENDING (Resources)\n"]) == {
        "7_2": ("COMPLETED", ""),
        "7_3": ("PENDING", "Resources"),
    }


def test_a_job_that_is_queued_again_is_not_done(
    squeue: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of("12_0")
    for state in ("PENDING None", "RUNNING None", "PENDING BeginTime", "PENDING BeginTime"):
        squeue(f"echo '12_0 {state}'")
        assert not queue.is_done("12_0")
    assert said(caplog) == ["SLURM restarts 12_0: it was stopped before the end"]


def test_a_queue_that_does_not_answer_is_one_line_until_it_does(
    squeue: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_of("12_0")
    for script in ("echo 'no controller' >&2; exit 1", "echo '12_0 RUNNING None'"):
        squeue(script)
        assert not queue.is_done("12_0")
        assert not queue.is_done("12_0")
    squeue("exit 1")
    queue.get_state("12_0")
    assert said(caplog) == [
        "SLURM does not answer (no controller); asking again",
        "SLURM does not answer (exit code 1); asking again",
    ]


def test_jobs_of_an_earlier_start_are_awaited(
    squeue: Answer, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """12_1 runs until the third question; the others ended before the first."""
    asked = tmp_path / "asked"
    runs = f"echo >> {asked}; [ $(wc -l < {asked}) -lt 3 ] && echo 12_1 RUNNING None"
    squeue(f"{runs} || echo 12_1 COMPLETED None; echo 12_0 FAILED NonZeroExitCode")
    queue = SlurmQueue(poll_s=0.0)
    queue.wait_for(["12_0", "12_1", "9"])
    assert asked.read_text().count("\n") == 3
    assert said(caplog) == [
        "SLURM still has jobs of an earlier start of this sweep; waiting for their end, which "
        "comes at once if you type scancel 12 in another terminal"
    ]
    queue.wait_for(["12_0", "12_1", "9"])
    assert len(said(caplog)) == 1
    assert queue.left() == []
