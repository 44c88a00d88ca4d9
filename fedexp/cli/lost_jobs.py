"""Jobs of a sweep that leave no result, because their process was killed for example."""

import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hydra.core.utils import JobReturn, JobStatus

from fedexp.runtime.interrupts import exit_on_interrupt
from fedexp.runtime.limits import Sweep, how_to_go_on

LOGGER = logging.getLogger(__name__)

Lost = Callable[[str, str], JobReturn]
"""Names a lost job, given its number and a remark, and returns the result that stands for it."""


@contextmanager
def jobs_may_be_lost(sweep: Path) -> Iterator[Lost]:
    """In this block a launcher waits for its jobs and passes lost jobs to the yielded function.

    The sweep goes on without the lost jobs. After the block one line says how to repeat them.
    """
    lost: list[str] = []

    def name(job: str, remark: str) -> JobReturn:
        lost.append(job)
        LOGGER.error("job %s left no result%s", job, f"; {remark}" if remark else "")
        return JobReturn(status=JobStatus.COMPLETED, _return_value=math.nan)

    with exit_on_interrupt(sweep):
        yield name
    if lost:
        Sweep.has_left_jobs = True
        early = f"{len(lost)} job{'' if len(lost) == 1 else 's'} ended early"
        print(f"fedexp: {how_to_go_on(early, 'the others are done', sweep)}", file=sys.stderr)
