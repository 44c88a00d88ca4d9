"""Turns errors of a full or failing disk into errors of one line.

The command line uses this module before the job begins, so it imports nothing slow.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedexp.errors import InputError

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextmanager
def disk_errors_in_one_line(folder: Path | None = None) -> Iterator[None]:
    """In this block, raise InputError if a disk is full or fails.

    The error names the run's ``folder``, or without it the file that could not be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        where = folder or error.filename or "a file"
        then = f" and resume with resume={folder}" if folder else ""
        raise InputError(
            f"{where}: cannot be written ({error.strerror}); free some space{then}"
        ) from error
