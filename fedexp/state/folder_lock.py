"""The lock on a folder: one process at a time works in the folder of a run or of a sweep.

The lock is ``flock`` on the file ``.lock`` in the folder. The system releases the lock when the
process ends, also after a kill. On NFS, Linux asks the server for the lock, so the lock holds
between machines.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fedexp.errors import InputError
from fedexp.state.abandoned import try_lock

LOGGER = logging.getLogger(__name__)

LOCK = ".lock"
_HOLDER = re.compile(rb"(\d+) ([\w.-]+)\n")
_PATIENCE = 0.2
"""Seconds of trying to lock: a process in ``is_busy`` holds the lock for a moment, too."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock ``folder`` while the block runs. Raises InputError if another process has locked it."""
    with _lock(folder) as file:
        file.truncate()
        with suppress(OSError):  # the holder is only for messages; the disk may be full
            file.write(f"{os.getpid()} {socket.gethostname()}\n".encode())
            os.fsync(file.fileno())  # another machine reads what is on the server
        yield


def is_busy(folder: Path) -> bool:
    """Whether a process has locked the folder."""
    try:
        with (folder / LOCK).open("rb") as file:
            return try_lock(file, shared=True) is False
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_free(folder: Path) -> None:
    """Raise InputError if a process has locked the folder."""
    if is_busy(folder):
        with (folder / LOCK).open("rb") as file:
            raise _busy(folder, file)


def remove_unused(folder: Path) -> None:
    """Delete the folder if it holds nothing but its lock, which this process must have locked."""
    with suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK]:
            (folder / LOCK).unlink()
            folder.rmdir()


def _lock(folder: Path) -> BinaryIO:
    """Open and lock the file ``LOCK``; it is locked until it is closed."""
    while True:
        file = _open(folder / LOCK)
        taken = _try_patiently(file)
        if taken is False:
            with file:
                raise _busy(folder, file)
        if taken is None:
            LOGGER.warning(
                "%s: the file system has no locks; fedexp cannot see whether another process is "
                "using this folder, so start a run or sweep only once",
                folder,
            )
        with suppress(FileNotFoundError):  # the last holder may have deleted the file
            if os.path.samestat(os.fstat(file.fileno()), (folder / LOCK).stat()):
                return file
        file.close()


def _open(path: Path) -> BinaryIO:
    try:
        return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "rb+", buffering=0)
    except PermissionError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror})") from error


def _try_patiently(file: BinaryIO) -> bool | None:
    """``try_lock`` until it succeeds or ``_PATIENCE`` is over."""
    end = time.monotonic() + _PATIENCE
    while (taken := try_lock(file)) is False and time.monotonic() < end:
        time.sleep(0.05)
    return taken


def _busy(folder: Path, file: BinaryIO) -> InputError:
    """The error that names the process which has locked ``file``."""
    found = None
    with suppress(OSError):  # SMB lets nobody else read a locked file
        found = _HOLDER.fullmatch(file.read(300))
    process = f"process {found[1].decode()} on {found[2].decode()}" if found else "another process"
    return InputError(f"{folder}: {process} is using this folder")
