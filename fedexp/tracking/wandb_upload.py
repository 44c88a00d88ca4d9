"""Uploads a run's W&B record beside training, which never waits for W&B's server.

A run with ``tracking.wandb.mode=online`` writes the same local record as an offline run. Another
process, ``wandb_uploader``, reads this record and uploads it. So nothing that happens to the server
or to the upload can reach the run or its record.
"""

import atexit
import logging
import multiprocessing
import os
import re
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from threading import Thread
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedexp.drawing.texts import legible, printable
from fedexp.errors import first_line

DELETED = "fedexp: the run was deleted"
ELSEWHERE = "fedexp: the run was also started in "
"""The beginnings of the lines that ``wandb_uploader`` prints besides those of W&B."""

_LOGGER = logging.getLogger(__name__)

_POLL_S = 0.1
_IDLE_S = 5.0
"""If the upload says nothing new for this time, the server is asked whether it still answers."""

_PROBE_S = 5.0
_READ_S = 5.0
"""The longest wait for the last lines of an upload that has ended."""

_PENDING = 2
"""The most finished jobs of a sweep whose uploads may go on beside the next job."""

_BUSY = 429
_BROKEN = 500
_ADDRESS = re.compile(r"View run .* at (\S+)")
_PROGRAM = "fedexp.tracking.wandb_uploader"
_ERROR = re.compile(r"(?:wandb: )?ERROR (?:\[.*?\] )?(.*?)(?:\. |$)")


class Upload:
    """The upload of one record.

    Args:
        record: the ``.wandb`` file that the run writes.
        server: the address of W&B's server.
        patience_s: seconds for the server's first answer; then one warning says that there is none.
        of_sweep: whether the run is a job of a sweep, in which such a server is left alone.
        known: entity, project and id of a run that the server may know already; empty for a new
            run.

    Attributes:
        new_id: the id with which the server takes a run again that was deleted there; empty for
            other runs.
    """

    def __init__(
        self,
        record: Path,
        server: str,
        patience_s: float,
        of_sweep: bool,
        known: Sequence[str] = (),
    ) -> None:
        self.folder, self._server = record.parent, server
        self._synced = Path(f"{record}.synced")
        self._reason, self._has_failed, self._moved = "", False, time.monotonic()
        self.new_id = ""
        self._process: subprocess.Popen[str] | None = None
        self._of_sweep = of_sweep
        if of_sweep and server in _Sweep.silent:
            self._reason = _Sweep.silent[server]
            return
        self._process = _start(record, server, known)
        self._reader = Thread(target=self._follow, args=[self._process], daemon=True)
        self._reader.start()
        Thread(target=self._greet, args=[patience_s], daemon=True).start()

    @property
    def command(self) -> str:
        """The command that completes the record on the server, for a deleted run as a new one."""
        renamed = f"--id {self.new_id} " if self.new_id else ""
        return f"wandb sync {renamed}{shlex.quote(str(self.folder))}"

    def is_running(self) -> bool:
        """Whether the upload goes on."""
        return self._process is not None and self._process.poll() is None

    def wait(self, limit_s: float) -> bool:
        """Wait until the record is uploaded, at most ``limit_s`` and while the server answers.

        The run must have closed the record. Returns whether the record is uploaded. A Ctrl-C ends
        the waiting and nothing else.
        """
        end = time.monotonic() + limit_s
        try:
            if not self._ended_by(min(end, time.monotonic() + 1)) and self._still_answers():
                _LOGGER.info(
                    "W&B: uploading to %s, at most %g s; Ctrl-C leaves it to `%s`",
                    *(self._server, limit_s, self.command),
                )
            while not self._ended_by(min(end, time.monotonic() + _IDLE_S)):
                if time.monotonic() >= end:
                    self._reason = f"not done after {limit_s:g} s"
                    break
                if not self._still_answers():
                    break
        except KeyboardInterrupt:
            self._reason = "left by Ctrl-C"
        self.stop()
        return self._synced.exists() and not self._has_failed

    def why_not(self) -> str:
        """Why the record is not uploaded, in a few words."""
        return self._reason or "the upload ended early"

    def stop(self) -> None:
        """End the upload's process, whatever it does."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._reader.join(_READ_S)
        if self._has_failed:  # W&B marks such a record, too, and would not upload it again
            self._synced.unlink(missing_ok=True)

    def _ended_by(self, end: float) -> bool:
        while self.is_running() and time.monotonic() < end:
            time.sleep(_POLL_S)
        return not self.is_running()

    def _still_answers(self) -> bool:
        """Whether the upload moved lately or the server answers; otherwise notes the reason."""
        if time.monotonic() - self._moved < _IDLE_S:
            return True
        if problem := server_problem(self._server, _PROBE_S):
            self._note(problem)
        return not problem

    def _follow(self, process: "subprocess.Popen[str]") -> None:
        """Take in what the upload prints; it prints a line whenever something arrived."""
        for line in process.stdout or ():
            self._moved = time.monotonic()
            if found := _ADDRESS.search(line):
                _LOGGER.info("W&B: %s", found[1])
            elif found := _ERROR.match(line):
                self._reason, self._has_failed = found[1].strip(), True
            elif line.startswith(DELETED):
                self._reason, self.new_id = "it was deleted on the server", secrets.token_hex(4)
            elif line.startswith(ELSEWHERE):
                _LOGGER.warning(
                    "W&B: this run was also started in %s; the record uploaded last stays",
                    printable(line.removeprefix(ELSEWHERE).strip()),
                )
            elif "Not authenticated" in line or "No API key" in line:
                self._reason = "no key; `wandb login` stores one"

    def _greet(self, patience_s: float) -> None:
        """Say in one line if the server does not answer at the start."""
        problem = server_problem(self._server, patience_s)
        if problem and not (self._of_sweep and self._server in _Sweep.silent):
            self._note(problem)
            _LOGGER.warning(
                "W&B: %s; training does not wait, the record is kept in %s", problem, self.folder
            )

    def _note(self, problem: str) -> None:
        self._reason = problem
        if self._of_sweep:
            _Sweep.silent[self._server] = problem


class _Sweep:
    """What the jobs of a sweep in this process share.

    Attributes:
        silent: server that did not answer -> the reason; later jobs leave it alone.
        pending: uploads of finished jobs that go on beside the next job.
        left: uploads that did not succeed.
        limit_s: seconds to wait for the last uploads; 0 before the first job is finished.
    """

    silent: dict[str, str] = {}
    pending: list[Upload] = []
    left: list[Upload] = []
    limit_s = 0.0


def finish(upload: Upload, limit_s: float, of_sweep: bool) -> None:
    """Wait for the upload of a closed record; in a sweep, let it go on beside the next job.

    The workers of a parallel sweep wait, because they end without a last step in which to wait.
    """
    if not of_sweep or multiprocessing.parent_process() is not None:
        if not upload.wait(limit_s):
            _report([upload])
        return
    if not _Sweep.limit_s:
        atexit.register(_finish_sweep)
    _Sweep.limit_s = limit_s
    _Sweep.pending.append(upload)
    while _Sweep.pending:
        if len(_Sweep.pending) <= _PENDING and _Sweep.pending[0].is_running():
            break
        _settle(_Sweep.pending.pop(0), limit_s)


def _settle(upload: Upload, limit_s: float) -> None:
    if not upload.wait(limit_s):
        _Sweep.left.append(upload)


def _finish_sweep() -> None:
    """At the end of the process, wait for the last uploads and name all that failed in one line."""
    end = time.monotonic() + _Sweep.limit_s
    for upload in _Sweep.pending:
        _settle(upload, max(0.0, end - time.monotonic()))
    if _Sweep.left:
        _report(_Sweep.left)


def _report(left: Sequence[Upload]) -> None:
    """Name the failed uploads in one line; a deleted run has its own, because its id is new."""
    for deleted in (each for each in left if each.new_id):
        _report_together([deleted])
    if others := [each for each in left if not each.new_id]:
        _report_together(others)


def _report_together(left: Sequence[Upload]) -> None:
    reasons = " and ".join(sorted({each.why_not() for each in left}))
    places = sorted({str(each.folder.parent) for each in left})
    if len(left) == 1:
        command = left[0].command
    elif len({str(Path(each).parent.parent) for each in places}) == 1 and len(places) > 1:
        command = f"wandb sync {shlex.quote(str(Path(places[0]).parent.parent))}/*/wandb"
    else:
        command = f"wandb sync {shlex.join(places)}"
    what = "this run is" if len(left) == 1 else f"{len(left)} runs are"
    _LOGGER.warning("W&B: %s not completely uploaded (%s); to complete: %s", what, reasons, command)


def _start(record: Path, server: str, known: Sequence[str]) -> "subprocess.Popen[str]":
    own = {key: value for key, value in os.environ.items() if key != "WANDB_SERVICE"}
    own |= {"WANDB_BASE_URL": server, "WANDB_DIR": str(record.parents[2]), "WANDB_MODE": "online"}
    own |= {"WANDB_SILENT": "false", "WANDB_QUIET": "false", "PYTHONUNBUFFERED": "1"}
    package = str(Path(__file__).parents[2])
    own["PYTHONPATH"] = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    return subprocess.Popen(
        [sys.executable, "-m", _PROGRAM, str(record), *known],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=own,
        start_new_session=True,  # a Ctrl-C in the terminal is for the run
    )


def server_problem(server: str, timeout_s: float) -> str | None:
    """Why the server gives no useful answer; None if it answers."""
    question = Request(f"{server}/graphql", data=b'{"query": "{__typename}"}')
    question.add_header("Content-Type", "application/json")
    try:
        urlopen(question, timeout=timeout_s).close()
    except HTTPError as error:
        is_useful = error.code < _BROKEN and error.code != _BUSY
        return None if is_useful else f"{server} answers with HTTP {error.code}"
    except OSError as error:
        return f"{server} does not answer ({getattr(error, 'reason', None) or error})"
    except HTTPException as error:
        return f"{server} does not speak HTTP ({legible(first_line(error).strip())})"
    return None
