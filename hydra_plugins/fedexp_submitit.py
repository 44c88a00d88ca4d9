"""``hydra/launcher=submitit_slurm|submitit_local``: a sweep as jobs of a cluster's queue.

Hydra imports this file at every start, with or without the extra ``slurm``.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn, JobStatus

from fedexp.config.option_files import shown
from fedexp.runtime.interrupts import exit_on_interrupt
from fedexp.runtime.limits import how_to_go_on, leave_jobs
from fedexp.runtime.slurm_queue import SlurmQueue

try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:  # without the extra ``slurm`` these classes are not used
    BaseSubmititLauncher = object

LOGGER = logging.getLogger(__name__)


class _QueueLauncher(BaseSubmititLauncher):  # type: ignore[misc]
    """The launcher of hydra-submitit-launcher; a job that the queue ends does not end the sweep."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Queue the jobs and wait for them; name the jobs that ended without a result."""
        folder = Path(self.config.hydra.sweep.dir)
        with exit_on_interrupt(folder), _jobs_may_fail(self._EXECUTOR) as lost:
            results: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        if lost:
            leave_jobs()
            early = f"{len(lost)} job{'' if len(lost) == 1 else 's'} ended early"
            line = how_to_go_on(early, "the others are done", folder)
            print(f"fedexp: {line}", file=sys.stderr)
        return results


class SlurmLauncher(_QueueLauncher):
    """Runs a sweep as an array job of SLURM."""

    _EXECUTOR = "slurm"


class LocalLauncher(_QueueLauncher):
    """Imitates SLURM with processes of this machine, to try a sweep before using SLURM."""

    _EXECUTOR = "local"


@contextmanager
def _jobs_may_fail(executor: str) -> Iterator[list[str]]:
    """In this block a job without a result is no error of the sweep; yields these jobs' numbers."""
    from submitit.core.utils import FailedJobError, UncompletedJobError
    from submitit.local.local import LocalJob
    from submitit.slurm.slurm import SlurmJob

    queue = SlurmQueue()
    slurm: Any = SlurmJob
    slurm.watcher = queue
    kind: Any = {"slurm": SlurmJob, "local": LocalJob}[executor]
    results, lost = kind.results, []

    def results_or_nothing(job: Any) -> list[JobReturn]:
        job.wait()
        try:
            if queue.has_failed(job.job_id) and not job.paths.result_pickle.exists():
                raise UncompletedJobError  # submitit would wait for the file
            found: list[JobReturn] = results(job)
        except (FailedJobError, UncompletedJobError):
            lost.append(job.job_id)
            output = job.paths.stderr
            where = f"; its output: {shown(output)}" if output.exists() else ""
            LOGGER.error("job %s left no result%s", job.job_id, where)
            return [JobReturn(status=JobStatus.COMPLETED, _return_value=math.nan)]
        return found

    kind.results = results_or_nothing
    try:
        yield lost
    except KeyboardInterrupt:
        if left := queue.left():
            line = f"the jobs stay in SLURM's queue, unless you type scancel {' '.join(left)}"
            print(f"fedexp: {line}", file=sys.stderr)
        raise
    finally:
        kind.results = results
