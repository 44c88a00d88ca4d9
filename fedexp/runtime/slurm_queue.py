"""What SLURM's queue says about the jobs of a sweep.

submitit itself asks SLURM's accounting, which many clusters do not have; without it a job that is
lost would be awaited for ever. The queue is always there.
"""

import logging
import subprocess
import time
from collections.abc import Iterable

LOGGER = logging.getLogger(__name__)

_POLL_S = 10.0
_PATIENCE_S = 30.0
"""Seconds in which ``squeue`` should answer."""

_COMMAND = ("squeue", "--me", "--array", "--states=all", "--noheader", "--format=%i %T %r")
"""Asks for all of the user's jobs, because SLURM refuses a list with a job that it has forgotten.
"""

_STARTS_BY_ITSELF = ("", "None", "Resources", "Priority", "BeginTime", "JobArrayTaskLimit")
"""Reasons for which a job waits that need no word."""

_HOLDS = "holds"
_WAITS, _RUNS, _DONE, _GONE = "PENDING", "RUNNING", "COMPLETED", "not in the queue"
_FAILED = {
    *("BOOT_FAIL", "CANCELLED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("TIMEOUT", _GONE),
}
_ENDED = _FAILED | {_DONE}
_ADVICE = {
    "OUT_OF_MEMORY": "hydra.launcher.mem_gb is the memory of a job",
    "PartitionTimeLimit": "hydra.launcher.timeout_min is more than hydra.launcher.partition allows",
    "TIMEOUT": "hydra.launcher.signal_delay_s should be longer than the longest round",
}
_NAMED = 3
"""How many jobs a line names."""


class SlurmQueue:
    """Tells submitit the states of a sweep's jobs, in place of the ``watcher`` of submitit's jobs.

    Says why SLURM holds jobs back, each reason once, and which jobs it has ended or restarts.

    Args:
        poll_s: seconds between two questions to SLURM.
    """

    def __init__(self, poll_s: float = _POLL_S) -> None:
        self._poll_s, self._next = poll_s, 0.0
        self._states: dict[str, str] = {}
        self._absent: set[str] = set()
        self._said: set[str] = set()

    def register_job(self, job_id: str) -> None:
        """Called by submitit for each job, and before it for the array of the jobs."""
        self._states.pop(job_id.partition("_")[0], None)
        self._states[job_id] = "UNKNOWN"

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """The state of a job in SLURM's words; "UNKNOWN" until SLURM answers."""
        if time.monotonic() >= self._next:
            self._update()
            self._next = time.monotonic() + self._poll_s
        return self._states[job_id]

    def is_done(self, job_id: str, mode: str = "standard") -> bool:
        """Whether the job has ended, with or without a result."""
        return self.get_state(job_id, mode) in _ENDED

    def has_failed(self, job_id: str) -> bool:
        """Whether the job has ended, and not in the ordinary way."""
        return self._states.get(job_id) in _FAILED

    def left(self) -> list[str]:
        """The numbers of the arrays and jobs that have not ended."""
        waiting = (job for job, state in self._states.items() if state not in _ENDED)
        return sorted({job.partition("_")[0] for job in waiting}, key=int)

    def wait_for(self, jobs: Iterable[str]) -> None:
        """Wait until those of the jobs that are still in the queue have ended.

        Two jobs of one run must not be in the queue at the same time.
        """
        found = self._ask() or {}
        waiting = [job for job in jobs if found.get(job, (_DONE, ""))[0] not in _ENDED]
        if not waiting:
            return
        for job in waiting:
            self.register_job(job)
        LOGGER.warning(
            "SLURM still has jobs of an earlier start of this sweep; waiting for their end, which "
            "comes at once if you type scancel %s in another terminal",
            " ".join(self.left()),
        )
        while not all(self.is_done(job) for job in waiting):
            time.sleep(self._poll_s)

    def _update(self) -> None:
        found = self._ask()
        if found is None:
            return
        absent = self._states.keys() - found.keys()
        # One answer without a job proves nothing.
        found |= dict.fromkeys(absent & self._absent, (_GONE, ""))
        self._absent = absent
        told: dict[tuple[str, str], list[str]] = {}
        for job in [each for each in self._states if each in found]:
            before, self._states[job] = self._states[job], found[job][0]
            if new := news(before, *found[job]):
                told.setdefault(new, []).append(job)
        for (verb, reason), jobs in told.items():
            if verb != _HOLDS or reason not in self._said:
                self._said.add(reason)
                _say(verb, jobs, reason)

    def _ask(self) -> dict[str, tuple[str, str]] | None:
        """Job -> its state and the reason of it; None, and one line, if SLURM does not answer."""
        try:
            answer = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=_PATIENCE_S)
            failed = f"exit code {answer.returncode}" if answer.returncode else ""
            problem = failed and (answer.stderr.strip() or failed)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if not problem:
            self._said.discard(_COMMAND[0])
            return queued(answer.stdout.splitlines())
        if _COMMAND[0] not in self._said:
            self._said.add(_COMMAND[0])
            LOGGER.warning("SLURM does not answer (%s); asking again", problem.partition("\n")[0])
        return None


def queued(lines: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Job -> its state and its reason, from lines such as ``12_3 PENDING PartitionTimeLimit``."""
    parts = ((*line.split(None, 2), "", "") for line in lines if line.strip())
    return {job: (state, reason.strip().strip("()")) for job, state, reason, *_ in parts}


def news(before: str, state: str, reason: str) -> tuple[str, str] | None:
    """What SLURM does with a job, and why, if that needs a word; ``before`` is its last state."""
    if state in _FAILED and state != before:
        return "ended", state
    if state == _WAITS and before == _RUNS:
        return "restarts", "it was stopped before the end"
    if state == _WAITS and reason not in _STARTS_BY_ITSELF:
        return _HOLDS, reason
    return None


def _say(verb: str, jobs: list[str], reason: str) -> None:
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    advice = f"; {_ADVICE[reason]}" if reason in _ADVICE else ""
    LOGGER.warning("SLURM %s %s%s: %s%s", verb, ", ".join(jobs[:_NAMED]), more, reason, advice)
