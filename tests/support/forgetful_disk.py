"""A disk that forgets at a power loss whatever was not flushed to it."""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

Image = dict[str, bytes | None]
"""Path below the watched folder -> content of a file, None for a folder."""

CHANGES = ("replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")


class ForgetfulDisk:
    """Watches a folder and knows what a power loss would leave of it at any moment.

    A file's content lasts as of its latest fsync; before the first it is empty. A folder's list of
    files may last as of the folder's latest fsync, or as it is now: disks write both in any order.
    So each moment has two images.

    Attributes:
        images: all different images so far, in order.
        flushes: the number of fsyncs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.images: list[Image] = []
        self.flushes = 0
        self._contents: dict[int, bytes] = {}  # inode -> content on the disk
        self._entries: dict[int, dict[str, int]] = {}  # inode of a folder -> its list on the disk
        self._lock = threading.Lock()
        self._open: list[int] = []  # so that no inode is used again for another file
        self._remember()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Watch all changes of files in this block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", self._flush)
            for name in CHANGES:
                patch.setattr(os, name, self._then_remember(getattr(os, name)))
            yield
        for handle in self._open:
            os.close(handle)

    def _flush(self, handle: int) -> None:
        with self._lock:  # several threads flush at once
            self._flush_one(handle)

    def _flush_one(self, handle: int) -> None:
        self.flushes += 1
        # A handle of its own: a duplicate would hold the lock of a locked file.
        self._open.append(os.open(f"/proc/self/fd/{handle}", os.O_RDONLY))
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            found = {name: os.stat(name, dir_fd=handle) for name in os.listdir(handle)}
            self._entries[status.st_ino] = {name: each.st_ino for name, each in found.items()}
            for each in found.values():
                if stat.S_ISDIR(each.st_mode):
                    self._entries.setdefault(each.st_ino, {})
        else:
            self._contents[status.st_ino] = Path(f"/proc/self/fd/{handle}").read_bytes()
        self._remember()

    def _then_remember(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **named: Any) -> Any:
            self._remember()  # what has been written since
            result = change(*arguments, **named)
            self._remember()
            return result

        return changed

    def _remember(self) -> None:
        lasting: Image = {}
        self._add_lasting(self.folder.stat().st_ino, "", lasting)
        for image in (lasting, self._with_present_names()):
            if image not in self.images:
                self.images.append(image)

    def _add_lasting(self, folder: int, path: str, image: Image) -> None:
        for name, inode in self._entries.get(folder, {}).items():
            own = f"{path}{name}"
            if inode in self._contents:
                image[own] = self._contents[inode]
            elif inode in self._entries:
                image[own] = None
                self._add_lasting(inode, f"{own}/", image)
            else:
                image[own] = b""

    def _with_present_names(self) -> Image:
        image: Image = {}
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            image[name] = None if path.is_dir() else self._contents.get(path.stat().st_ino, b"")
        return image


def restore(image: Image, folder: Path) -> None:
    """Make the folder of an image."""
    folder.mkdir()
    for name, content in image.items():
        if content is None:
            (folder / name).mkdir(parents=True, exist_ok=True)
        else:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
