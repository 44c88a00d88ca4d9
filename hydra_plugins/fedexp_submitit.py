"""``hydra/launcher=submitit_slurm|submitit_local``: a sweep as jobs of a cluster's queue.

Hydra imports this file at every start, with or without the extra ``slurm``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from fedexp.cli.lost_jobs import Lost, jobs_may_be_lost
from fedexp.config.option_files import shown
from fedexp.runtime.slurm_queue import SlurmQueue

try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:  # without the extra ``slurm`` these classes are not used
    BaseSubmititLauncher = object


class _QueueLauncher(BaseSubmititLauncher):  # type: ignore[misc]
    """The launcher of hydra-submitit-launcher; a job that the queue ends does not end the sweep."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Queue the jobs and wait for them; name the jobs that ended without a result."""
        folder, queue = Path(self.config.hydra.sweep.dir), SlurmQueue()
        with jobs_may_be_lost(folder) as lost, _jobs_may_fail(self._EXECUTOR, queue, lost):
            if self._EXECUTOR == "slurm":
                queue.wait_for(_jobs_without_result(folder))
            results: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        return results


class SlurmLauncher(_QueueLauncher):
    """Runs a sweep as an array job of SLURM."""

    _EXECUTOR = "slurm"


class LocalLauncher(_QueueLauncher):
    """Imitates SLURM with processes of this machine, to try a sweep before using SLURM."""

    _EXECUTOR = "local"


def _jobs_without_result(sweep: Path) -> list[str]:
    """The numbers of the jobs that earlier starts of the sweep have queued, lost jobs included."""
    queued = (path.parent for path in (sweep / ".submitit").glob("*/*_submitted.pkl"))
    return [folder.name for folder in queued if not any(folder.glob("*_result.pkl"))]


@contextmanager
def _jobs_may_fail(executor: str, queue: SlurmQueue, lost: Lost) -> Iterator[None]:
    """In this block submitit asks ``queue`` for its jobs, and gets a result for each of them."""
    from submitit.core.utils import FailedJobError, UncompletedJobError
    from submitit.local.local import LocalJob
    from submitit.slurm.slurm import SlurmJob

    slurm: Any = SlurmJob
    slurm.watcher = queue
    kind: Any = {"slurm": SlurmJob, "local": LocalJob}[executor]
    results = kind.results

    def results_or_nothing(job: Any) -> list[JobReturn]:
        job.wait()
        try:
            if queue.has_failed(job.job_id) and not job.paths.result_pickle.exists():
                raise UncompletedJobError  # submitit would wait for the file
            found: list[JobReturn] = results(job)
        except (FailedJobError, UncompletedJobError):
            output = job.paths.stderr
            return [lost(job.job_id, f"its output: {shown(output)}" if output.exists() else "")]
        return found

    kind.results = results_or_nothing
    try:
        yield
    except KeyboardInterrupt:
        if left := queue.left():
            line = f"the jobs stay in SLURM's queue, unless you type scancel {' '.join(left)}"
            print(f"fedexp: {line}", file=sys.stderr)
        raise
    finally:
        kind.results = results
