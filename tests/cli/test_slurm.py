"""Sweeps and runs on a real SLURM with two nodes, which ``support/slurm_cluster.py`` starts."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.slurm_cluster import NODES, Cluster, missing, running_cluster, until

import fedexp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason="SLURM and munge are not installed"),
]

TINY = ["algorithm=fedavg", "clients.count=4", "clients.per_round=2", "local.epochs=1"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", "data.subset=300"]
TINY += ["engine.threads=1"]
QUEUED = ["-m", "hydra/launcher=slurm", "hydra.launcher.gpus_per_node=0"]
QUEUED += ["hydra.launcher.cpus_per_task=1", "hydra.launcher.mem_gb=1", "hydra.sweep.dir=sweep"]
SLOW = ["+measure.slow._target_=support.slow_rounds.SlowRounds"]
LONG = 600.0
"""Seconds that a test waits for what certainly happens."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as running:
        yield running


class Started:
    """A command that runs on the cluster; its output is in the file ``printed``."""

    def __init__(self, cluster: Cluster, folder: Path, *words: str, **variables: str) -> None:
        self._printed = folder / "printed"
        tests = str(Path(__file__).parents[1])
        path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
        with self._printed.open("wb") as file:
            self._process = subprocess.Popen(
                words,
                cwd=folder,
                env={**cluster.environment, "PYTHONPATH": path, **variables},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def printed(self) -> str:
        return self._printed.read_text()

    def says(self, text: str, within_s: float = LONG) -> None:
        """Wait until the command prints ``text``."""

        def said() -> bool:
            assert self._process.poll() is None or text in self.printed, self.printed
            return text in self.printed

        until(said, within_s)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        self._process.kill()

    def code(self) -> int:
        """Wait for the end; return the exit code."""
        return self._process.wait(LONG)


def sweep(cluster: Cluster, folder: Path, *words: str) -> Started:
    return Started(cluster, folder, sys.executable, "-m", "fedexp.train", *QUEUED, *TINY, *words)


def trained(folder: Path, job: int, rounds: int = 1) -> None:
    """Wait until a job of the sweep has trained some rounds."""
    metrics = folder / "sweep" / str(job) / "metrics.jsonl"
    until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= rounds, LONG)


def digest(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["weights_digest"])


def digest_of_one_run(folder: Path, *words: str) -> str:
    return digest(fedexp.run([*TINY, f"hydra.run.dir={folder}", *words]).folder)


def array(cluster: Cluster) -> str:
    """The number of the array job in the queue."""
    return cluster.ask("squeue", "--noheader", "--format=%F").splitlines()[0]


def test_an_array_has_the_bits_of_its_runs(cluster: Cluster, tmp_path: Path) -> None:
    """The cluster has no accounting, which is no word in the output."""
    command = sweep(cluster, tmp_path, "rounds=2", "seed=0,1")
    assert command.code() == 0, command.printed
    assert "accounting" not in command.printed
    assert "sacct" not in command.printed
    assert (tmp_path / "sweep" / "sweep.csv").exists()
    for seed in (0, 1):
        alone = digest_of_one_run(tmp_path / f"alone-{seed}", "rounds=2", f"seed={seed}")
        assert digest(tmp_path / "sweep" / str(seed)) == alone


def test_a_job_at_its_limit_of_time_is_queued_again(cluster: Cluster, tmp_path: Path) -> None:
    rounds = ["rounds=75", "seed=0"]
    limit = ["hydra.launcher.timeout_min=3", "hydra.launcher.signal_delay_s=60"]
    command = sweep(cluster, tmp_path, *rounds, *limit, *SLOW, "+measure.slow.seconds=2")
    assert command.code() == 0, command.printed
    (log,) = (tmp_path / "sweep" / ".submitit").glob("*/*_log.out")
    assert log.read_text().count("Starting with JobEnvironment") > 1
    assert digest(tmp_path / "sweep" / "0") == digest_of_one_run(tmp_path / "alone", *rounds)


def test_a_cancelled_job_is_marked_and_the_printed_command_finishes_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    rounds = "rounds=12"
    command = sweep(cluster, tmp_path, rounds, "seed=0,1", *SLOW, "+measure.slow.seconds=2")
    trained(tmp_path, 1)
    cluster.ask("scancel", f"{array(cluster)}_1")
    assert command.code() == 75, command.printed
    assert "_1: CANCELLED" in command.printed
    table = r"sweep/1: \d+ of 12 rounds, left out of means; to finish it: (fedexp) (-m) (resume=.*)"
    found = re.search(table, command.printed)
    assert found, command.printed
    again = Started(cluster, tmp_path, sys.executable, "-m", "fedexp.train", *found.groups()[1:])
    assert again.code() == 0, again.printed
    assert digest(tmp_path / "sweep" / "1") == digest_of_one_run(tmp_path / "a", rounds, "seed=1")


def test_a_killed_job_and_one_that_never_began_are_named(cluster: Cluster, tmp_path: Path) -> None:
    """A job that needs more memory than it has is killed like this, too."""
    words = ["seed=0,1", "rounds=500", *SLOW, "+measure.slow.seconds=2"]
    command = sweep(cluster, tmp_path, *words, "hydra.launcher.array_parallelism=1")
    trained(tmp_path, 0)
    number = array(cluster)
    cluster.ask("scancel", f"{number}_1")
    command.says(f"SLURM ended {number}_1: CANCELLED", 60)
    cluster.kill("SLURM_STEP_ID=0", f"SLURM_ARRAY_JOB_ID={number}", "SLURM_ARRAY_TASK_ID=0")
    command.says(f"SLURM ended {number}_0: FAILED", 60)
    assert command.code() == 1, command.printed
    assert f"job {number}_0 left no result; its output: " in command.printed
    assert "2 jobs ended early: the others are done; to go on, add resume=" in command.printed
    assert "Failed: sweep/0" in command.printed


def test_a_job_whose_node_dies_goes_on_at_another(cluster: Cluster, tmp_path: Path) -> None:
    rounds = ["rounds=20", "seed=0"]
    command = sweep(cluster, tmp_path, *rounds, *SLOW, "+measure.slow.seconds=1")
    trained(tmp_path, 0, rounds=2)
    node = cluster.ask("squeue", "--noheader", "--format=%N")
    cluster.kill_node(node)
    try:
        assert command.code() == 0, command.printed
    finally:
        cluster.start_node(node)
    assert digest(tmp_path / "sweep" / "0") == digest_of_one_run(tmp_path / "alone", *rounds)


def test_a_job_that_waits_for_ever_says_why_and_ctrl_c_leaves_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    limit = ["hydra.launcher.partition=short", "hydra.launcher.timeout_min=5"]
    command = sweep(cluster, tmp_path, "seed=0,1", *limit)
    command.says("PartitionTimeLimit; hydra.launcher.timeout_min is more than")
    number = array(cluster)
    command.interrupt()
    assert command.code() == 130
    assert f"unless you type scancel {number}\n" in command.printed
    assert "interrupted; to go on, add resume=sweep" in command.printed
    cluster.ask("scancel", number)


def test_the_jobs_of_a_sweep_are_not_queued_twice(cluster: Cluster, tmp_path: Path) -> None:
    """While its command runs, a second start is refused; after its end, it waits for the jobs."""
    words = ["seed=0,1", "rounds=30", *SLOW, "+measure.slow.seconds=1"]
    first = sweep(cluster, tmp_path, *words)
    trained(tmp_path, 0)
    beside = tmp_path / "beside"
    beside.mkdir()
    second = sweep(cluster, beside, *words, f"hydra.sweep.dir={tmp_path / 'sweep'}", "resume=auto")
    assert second.code() == 1
    assert second.printed.endswith(" is using this folder\n")
    assert second.printed.count("\n") == 1
    first.kill()
    number = array(cluster)
    third = sweep(cluster, tmp_path, *words, "resume=auto")
    third.says("SLURM still has jobs of an earlier start of this sweep", 60)
    assert f"scancel {number} in" in third.printed
    assert third.code() == 0, third.printed
    assert "is using this folder" not in third.printed
    for seed in (0, 1):
        alone = digest_of_one_run(tmp_path / f"alone-{seed}", "rounds=30", f"seed={seed}")
        assert digest(tmp_path / "sweep" / str(seed)) == alone


SRUN = ["srun", "--nodes=2", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--unbuffered"]
TRAIN = [sys.executable, "-m", "fedexp.train", *TINY, "engine.num_nodes=2", "rounds=2"]


def test_two_nodes_have_the_digest_of_one_process(cluster: Cluster, tmp_path: Path) -> None:
    words = [*SRUN, *TRAIN, f"hydra.run.dir={tmp_path / 'two'}"]
    command = Started(cluster, tmp_path, *words, MASTER_ADDR="127.0.0.1", MASTER_PORT="29517")
    assert command.code() == 0, command.printed
    assert digest(tmp_path / "two") == digest_of_one_run(tmp_path / "one", "rounds=2")


def test_a_first_node_that_is_unknown_is_one_line(cluster: Cluster, tmp_path: Path) -> None:
    command = Started(cluster, tmp_path, *SRUN, *TRAIN)
    assert command.code() != 0  # 1, or 143 if srun ends the other rank
    assert f"MASTER_ADDR={NODES[0]}: rank " in command.printed
    assert "Traceback" not in command.printed


def test_a_rank_that_does_not_come_is_named_after_the_limit(
    cluster: Cluster, tmp_path: Path
) -> None:
    late = ["bash", "-c", '[ "$SLURM_PROCID" = 1 ] && sleep 900; exec "$@"', "rank"]
    words = [*SRUN, *late, *TRAIN, "engine.meeting_timeout=8"]
    command = Started(cluster, tmp_path, *words, MASTER_ADDR="127.0.0.1", MASTER_PORT="29518")
    command.says("rank 0 waits for rank 1 of 2 at 127.0.0.1:29518")
    assert command.code() != 0
    assert "engine.meeting_timeout=8: rank 1 of 2 did not come" in command.printed
