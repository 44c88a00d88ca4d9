"""Starts the processes of a run on one machine, and waits for them."""

import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import QueueHandler, QueueListener
from multiprocessing import connection, get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch.multiprocessing.spawn import start_processes

from fedexp.distributed.fabric import RENDEZVOUS
from fedexp.distributed.parent import follow_parent
from fedexp.distributed.wire import decode, encode
from fedexp.errors import InputError, Interrupted
from fedexp.state.abandoned import hold

LOGGER = logging.getLogger(__name__)
T = TypeVar("T")

START_METHOD = "spawn"
"""How multiprocessing starts the ranks; CUDA does not work after a fork."""

_GRACE_SECONDS = 2.0
"""After one process has failed, the others have this time to end by themselves."""

_FORWARDED = signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2

_RESULT, _FAILURE = "result", "failure.json"


def spawn(work: Callable[..., T], size: int, *arguments: Any) -> T:
    """Call ``work(*arguments)`` in ``size`` new processes; return the result of the first one.

    The result's tensors are on the CPU. The new processes have torchrun's environment variables.
    This process handles their log records. The new processes find each other through a folder that
    only this user may enter.

    Raises:
        InputError: a process raised it, or failed for another reason; in the second case the error
            names the rank. The other processes are ended.
        Interrupted: Ctrl-C or SIGTERM ended the processes.
    """
    records = get_context(START_METHOD).Queue()
    listener = QueueListener(records, _ReplayRecords())
    # A new temporary folder, which only this user may enter.
    with TemporaryDirectory(prefix="fedexp-ranks-") as name, hold(Path(name)):
        folder = Path(name)
        listener.start()
        with _interrupts_blocked():
            started = start_processes(  # type: ignore[no-untyped-call]
                _run_rank,
                (size, records, folder, work, arguments),
                size,
                join=False,
                start_method=START_METHOD,
            )
        try:
            failed = _wait(started.processes)
        finally:
            _terminate(started.processes)
            listener.stop()
        if failed:
            raise InputError(_reason(failed, folder))
        content = torch.from_numpy(np.fromfile(folder / _RESULT, dtype=np.uint8))
        result: T = decode(content, torch.device("cpu"))
        return result


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this process, and in the processes it starts until they unblock it.

    Otherwise a Ctrl-C would end the new processes with a traceback while they import modules.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _ReplayRecords(logging.Handler):
    """Passes another process's log records to the loggers of this process."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger(record.name).handle(record)


def _wait(processes: Sequence[BaseProcess]) -> dict[int, int]:
    """Wait until all processes end or one fails; return failed rank -> exit code.

    Raises Interrupted after a signal. After one signal all processes should end with the signal's
    exit code; any other code is a failure, such as a full disk. After a second signal they end at
    once, and lost connections do not count as failures.
    """
    running = {process.sentinel: process for process in processes}
    with _forward_signals(processes) as signals:
        while running:
            for sentinel in connection.wait(list(running)):
                running.pop(cast(int, sentinel)).join()
            codes = {rank: process.exitcode or 0 for rank, process in enumerate(processes)}
            ended = {rank: code for rank, code in codes.items() if code}
            expected = {code for each in signals for code in (128 + each, -each)}
            failed = {rank: code for rank, code in ended.items() if code not in expected}
            if failed and len(signals) < 2:
                return failed
    if ended:
        raise Interrupted(signals[0])
    return {}


@contextmanager
def _forward_signals(processes: Sequence[BaseProcess]) -> Iterator[list[signal.Signals]]:
    """Forward Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2 to ``processes``; yield the received signals.

    After the first signal the processes finish their round. A second Ctrl-C or SIGTERM ends them at
    once, and a third ends the wait for them. A second SIGUSR1 or SIGUSR2 does nothing.
    """
    received: list[signal.Signals] = []

    def forward(number: int, frame: FrameType | None) -> None:
        if received and number not in (signal.SIGINT, signal.SIGTERM):
            return
        received.append(signal.Signals(number))
        if len(received) > 2:
            raise Interrupted(received[0])
        for process in processes:
            if process.is_alive():
                os.kill(cast(int, process.pid), number)

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {each: signal.signal(each, forward) for each in _FORWARDED}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _terminate(processes: Sequence[BaseProcess]) -> None:
    """Wait a short time for the processes to end; then kill those that still run."""
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
        process.join()


def _reason(failed: Mapping[int, int], folder: Path) -> str:
    """Why the run failed, in one line; logs the traceback of an unexpected exception.

    A killed rank is named first, because the loss of its connection makes the other ranks fail.
    """
    rank, code = min(failed.items(), key=lambda item: item[1])
    if code < 0:
        return f"rank {rank} was killed by {signal.Signals(-code).name}"
    try:
        failure = json.loads((folder / _FAILURE).read_text())
    except FileNotFoundError:
        return f"rank {rank} ended with exit code {code}"
    if failure["traceback"]:
        LOGGER.error("rank %d failed\n%s", failure["rank"], failure["traceback"])
    return str(failure["line"])


def _run_rank(
    rank: int,
    size: int,
    records: Any,
    folder: Path,
    work: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    """The main function of each process."""
    follow_parent()
    os.setpgid(0, 0)  # own process group: otherwise a Ctrl-C would arrive twice
    os.environ |= _variables(rank, size, folder)
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // size))
    logging.root.handlers = [QueueHandler(records)]
    logging.root.setLevel(logging.INFO)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        result = work(*arguments)
        if rank == 0:
            (folder / _RESULT).write_bytes(encode(result).numpy().tobytes())
    except KeyboardInterrupt as error:
        sys.exit(128 + getattr(error, "signal", signal.SIGINT))
    except Exception as error:
        _write_failure(reason_of(error), rank, folder)
        sys.exit(1)


def reason_of(error: Exception) -> BaseException:
    """The InputError that ``error`` hides, if any; otherwise ``error``.

    After an InputError a rank waits for the other ranks. If one of them has ended by then, the lost
    connection raises a second error, which would hide the InputError.
    """
    before: BaseException | None = error
    while before is not None and not isinstance(before, InputError):
        before = before.__context__
    return before or error


def _variables(rank: int, size: int, folder: Path) -> dict[str, str]:
    """The environment of a rank: torchrun's variables, and a meeting file for this user only.

    The ranks meet in a file below ``folder``, and connect over the loopback interface only.
    """
    everything = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": size}
    meeting = {"TORCHELASTIC_RUN_ID": "fedexp", RENDEZVOUS: folder / "rendezvous"}
    loopbacks = (name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    for loopback in loopbacks:
        meeting |= {"GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    return {name: str(value) for name, value in (everything | meeting).items()}


def _write_failure(error: BaseException, rank: int, folder: Path) -> None:
    """Write why this rank failed, unless another rank has written its failure before."""
    expected = isinstance(error, InputError)
    first_line = str(error).partition("\n")[0]
    failure = {
        "rank": rank,
        "line": str(error)
        if expected
        else f"rank {rank} failed ({type(error).__name__}: {first_line})",
        "traceback": "" if expected else "".join(traceback.format_exception(error)).rstrip(),
    }
    with suppress(FileExistsError), (folder / _FAILURE).open("x") as file:
        json.dump(failure, file)
