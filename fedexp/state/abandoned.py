"""Removes files and folders that killed processes left: no living process has locked them."""

import re
import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LOCK = ".fedexp-temporary"
"""Name of the locked file in a temporary folder; a run's folder has no file of this name."""

YOUNG = 60
"""Age in seconds below which a file is not removed: its process may be about to lock it."""

_NAME = re.compile(r"fedexp-(clients|ranks)-[a-z0-9_]{8}")
"""Matches only fedexp's temporary folders; a user's own folder may begin with ``fedexp-``, too."""


def try_lock(file: BinaryIO, shared: bool = False) -> bool | None:
    """Lock the file until it is closed or this process ends.

    Args:
        file: must be open for writing; on NFS the system refuses to lock another file, except with
            ``shared``.
        shared: whether other processes may lock the file with ``shared``, too.

    Returns:
        False if another process has locked the file, and None if the system or the file system does
        not support locks.
    """
    try:
        import fcntl

        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def hold(folder: Path) -> BinaryIO:
    """Lock a temporary folder: it is not removed as abandoned while the returned file is open."""
    file = (folder / LOCK).open("wb")
    try_lock(file)
    return file


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove each of these paths that no living process has locked.

    A writer locks its file itself, or the file ``LOCK`` in its folder; a folder without ``LOCK``
    stays. A path also stays if it is younger than ``YOUNG`` seconds, or if it cannot be locked or
    removed.
    """
    for path in paths:
        with suppress(OSError):
            locked = path / LOCK if path.is_dir() else path
            if time.time() - path.stat().st_mtime < YOUNG:
                continue
            with locked.open("rb+") as file:
                if try_lock(file):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()


def remove_abandoned_folders() -> None:
    """Remove temporary folders of fedexp processes that were killed."""
    found = Path(tempfile.gettempdir()).glob("fedexp-*")
    remove_abandoned(path for path in found if _NAME.fullmatch(path.name) and path.is_dir())
