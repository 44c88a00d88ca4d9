"""A mapping with tensors as values, in RAM up to a bound and on disk beyond it."""

import ctypes
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.state.abandoned import hold
from fedexp.state.atomic import write_atomically
from fedexp.state.files import dump, load

K = TypeVar("K", bound=Hashable)
V = TypeVar("V", bound=Mapping[str, Any])

_TRIM_EVERY = 2**28
"""After this number of bytes written to disk, freed memory is returned to the system (256 MiB)."""


class RamAndDisk(MutableMapping[K, V]):
    """Maps keys to nested dictionaries of tensors; the oldest dictionaries are moved to disk.

    A value that is read stays where it is. Values come back from disk unchanged to the bit, with
    the same dtype, strides and device; tensors that shared memory within a value share it again.

    Args:
        ram_bytes: largest total size of the values that stay in RAM, or in the memory of the
            tensors' device.
        folder: a folder for this object's files only. It is created at the first write and deleted
            together with this object. If None, a temporary folder is used.

    Raises:
        InputError: the folder cannot be used, or its disk is full; a value then stays in RAM.
    """

    def __init__(self, ram_bytes: float, folder: Path | None = None) -> None:
        self._ram_bytes = ram_bytes
        self._ram: OrderedDict[K, V] = OrderedDict()  # the oldest value first
        self._ram_used = 0
        self._sizes: dict[K, int] = {}  # bytes of each value, in RAM or on disk
        self._folder = folder
        self._created: Path | None = None
        self._removal: Callable[[], object] = lambda: None
        self._untrimmed = 0  # bytes written to disk since memory was last returned to the system

    def __setitem__(self, key: K, value: V) -> None:
        if key in self:
            del self[key]
        self._ram[key] = value
        self._sizes[key] = storage_bytes(value)
        self._ram_used += self._sizes[key]
        while self._ram_used > self._ram_bytes:
            self._spill(next(iter(self._ram)))

    def __getitem__(self, key: K) -> V:
        if key not in self:
            raise KeyError(key)
        if key in self._ram:
            return self._ram[key]
        with self._disk():
            value: V = load(self._path(key), None)
            return value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        if key in self._ram:
            self._drop(key)
        else:
            with self._disk():
                self._path(key).unlink()
        del self._sizes[key]

    def __contains__(self, key: object) -> bool:
        return key in self._sizes

    def __iter__(self) -> Iterator[K]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    def clear(self) -> None:
        """Delete all values and the folder."""
        self._ram.clear()
        self._sizes.clear()
        self._ram_used = 0
        self._removal()
        self._created = None

    def is_in_ram(self, key: K) -> bool:
        """Whether the value is in RAM."""
        return key in self._ram

    def _spill(self, key: K) -> None:
        content = dump(self._ram[key])
        with self._disk():
            write_atomically(self._path(key), content)
        self._untrimmed += self._sizes[key]
        self._drop(key)
        if self._untrimmed >= _TRIM_EVERY:
            self._untrimmed = 0
            _return_freed_memory()

    def _drop(self, key: K) -> None:
        del self._ram[key]
        self._ram_used -= self._sizes[key]

    def _path(self, key: K) -> Path:
        if self._created is None:
            folder = self._folder or Path(tempfile.mkdtemp(prefix="fedexp-clients-"))
            folder.mkdir(parents=True, exist_ok=True)
            if self._folder is None:
                self._lock = hold(folder)
            self._removal = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._created = folder
        return self._created / f"{key}.pt"

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._created or self._folder or tempfile.gettempdir()
            raise InputError(
                f"clients.ram_gib: the rest is in {folder}, where an access failed ({error}); "
                "free some space there or raise clients.ram_gib"
            ) from error


class ServerTensors(RamAndDisk[str, Tensors]):
    """The tensors of a part's server half, by name; stores copies of them on the CPU."""

    def __setitem__(self, name: str, tensors: Tensors) -> None:
        own = {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()}
        super().__setitem__(name, own)


def storage_bytes(value: Any) -> int:
    """Bytes of all tensors in nested dictionaries; memory that tensors share counts once."""
    storages = (tensor.untyped_storage() for tensor in _tensors(value))
    return sum({each.data_ptr(): each.nbytes() for each in storages}.values())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    else:
        for each in value.values():
            yield from _tensors(each)


def _return_freed_memory() -> None:
    """Return freed memory to the operating system; does nothing if the C library is not glibc.

    Freed values leave the memory fragmented: without this function, the process took nearly twice
    the RAM bound.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
