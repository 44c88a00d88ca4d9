"""Atomic writing of files: a reader never sees a half-written file."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``, with the same suffix, for the new content.

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
    """Replace the content of ``path``, or leave the file as it was if writing fails (OSError)."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
