"""``hydra/launcher=submitit_slurm|submitit_local``: a sweep as jobs of a cluster's queue.

Hydra imports this file at every start, with or without the extra ``slurm``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.utils import JobReturn

from fedexp.errors import InputError
from fedexp.runtime.interrupts import exit_on_interrupt
from fedexp.runtime.limits import how_to_go_on
from fedexp.runtime.slurm_queue import watch_queue

try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:  # without the extra ``slurm`` these classes are not used
    BaseSubmititLauncher = object

_RESUME = "resume=auto"


class _QueueLauncher(BaseSubmititLauncher):  # type: ignore[misc]
    """The launcher of hydra-submitit-launcher; a job that is queued again resumes its run."""

    def checkpoint(self, overrides: Sequence[str], *others: Any) -> Any:
        """Called by submitit before a job is queued again, with the arguments of ``__call__``."""
        kept = [each for each in overrides if not each.startswith("resume=")]
        return super().checkpoint([*kept, _RESUME], *others)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Queue the jobs and wait for them. Raises InputError if the queue lost a job."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        folder = Path(self.config.hydra.sweep.dir)
        try:
            with exit_on_interrupt(folder):
                results: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        except (FailedJobError, UncompletedJobError) as error:
            lost = f"a job was lost ({str(error).partition(chr(10))[0]})"
            raise InputError(how_to_go_on(lost, "the others are still queued", folder)) from error
        return results


class SlurmLauncher(_QueueLauncher):
    """Runs a sweep as an array job of SLURM."""

    _EXECUTOR = "slurm"

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Queue the jobs and wait for them; say why SLURM holds jobs back."""
        with watch_queue(Path(self.params["submitit_folder"]).parent):
            return super().launch(job_overrides, initial_job_idx)


class LocalLauncher(_QueueLauncher):
    """Imitates SLURM with processes of this machine, to try a sweep before using SLURM."""

    _EXECUTOR = "local"
