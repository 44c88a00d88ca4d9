"""``hydra/launcher=ray``: a sweep whose jobs Ray runs.

Hydra imports this file at every start, with or without the extra ``ray``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hydra.core.utils import JobReturn

from fedexp.cli.lost_jobs import Lost, jobs_may_be_lost

try:
    from hydra_plugins.hydra_ray_launcher.ray_launcher import RayLauncher as PluginLauncher
except ImportError:  # without the extra ``ray`` this class is not used
    PluginLauncher = object


class RayLauncher(PluginLauncher):  # type: ignore[misc]
    """The launcher of hydra-ray-launcher; a worker that dies does not end the sweep.

    Ray itself starts a job again, ``max_retries`` times (``hydra.launcher.ray.remote``).
    """

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs and wait for them; name the jobs whose workers have died too often."""
        sweep = Path(self.config.hydra.sweep.dir)
        with jobs_may_be_lost(sweep) as lost, _workers_may_die(lost, initial_job_idx):
            results: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        return results


@contextmanager
def _workers_may_die(lost: Lost, first: int) -> Iterator[None]:
    """In this block hydra-ray-launcher gets a result for each job, whatever becomes of it.

    Args:
        lost: is told of each job without a result.
        first: the number of the first job.
    """
    import ray
    from hydra_plugins.hydra_ray_launcher import _core
    from ray.exceptions import RayError, RayTaskError

    numbers = count(first)

    def get(job: Any) -> JobReturn:
        number = next(numbers)
        try:
            result: JobReturn = ray.get(job)
        except RayTaskError:  # an error in the code, not of the worker
            raise
        except RayError as error:
            return lost(str(number), str(error).partition("\n")[0])
        return result

    _core.ray = SimpleNamespace(get=get)
    try:
        yield
    finally:
        _core.ray = ray
