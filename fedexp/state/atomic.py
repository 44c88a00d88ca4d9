"""Write files so that they are complete at any time, also after a kill or a power loss."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path for the new content, in the folder and with the suffix of ``path``.

    The temporary file is renamed to ``path`` when the block ends, or removed if the block raises.
    Several processes may write the same ``path`` at once; the last one to finish wins.
    """
    temporary = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Replace the content of ``path``; if writing fails (OSError), the file does not change.

    A power loss may undo the change; ``write_durably`` prevents this, but waits for the disk.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_durably(path: Path, content: bytes) -> None:
    """Like ``write_atomically``, but the new content is on disk when this function returns."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
        sync(temporary)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the list of files in a folder, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
