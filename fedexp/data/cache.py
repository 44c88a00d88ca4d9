"""Cache files of arrays: partitions, samples of files that are slow to read, decoded images.

If a file is missing or damaged, its arrays are computed and written again.
"""

import hashlib
import math
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast
from zipfile import BadZipFile

import numpy as np
from numpy.lib.format import open_memmap

from fedexp.data.split import by_owner
from fedexp.errors import InputError
from fedexp.state.abandoned import remove_abandoned, try_lock
from fedexp.state.atomic import atomic_path

T = TypeVar("T")

Arrays = dict[str, np.ndarray]
"""Name -> array."""

Images = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
"""A uint8 array."""

MAP_ABOVE = 2**30
"""Image files of more bytes (1 GiB) are memory-mapped; smaller files are read into memory."""


def fingerprint(*parts: object) -> str:
    """A hash of all ``parts``, as 32 hex digits.

    Of an array, dtype, shape and content are hashed; of any other value, its ``repr``.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        else:
            digest.update(f"{part!r};".encode())
    return digest.hexdigest()


def cached_arrays(
    path: Path,
    names: Collection[str],
    compute: Callable[[], Arrays],
    fits: Callable[[Arrays], bool] = lambda _: True,
) -> Arrays:
    """Read the named arrays from the file ``path``, or compute them and write the file.

    Args:
        path: a ``.npz`` file; its folders are created.
        names: names of the arrays.
        compute: computes arrays with these names.
        fits: returns whether the arrays from the file are usable. If not, the file counts as
            damaged.

    Raises:
        InputError: the file cannot be written.
    """

    def read() -> Arrays:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}

    arrays = _unless_damaged(read)
    if arrays is None or not fits(arrays):
        arrays = compute()
        with _writing(path) as temporary:
            np.savez(temporary, **cast(dict[str, Any], arrays))
    return arrays


def cached_partition(
    path: Path, num_samples: int, num_clients: int, compute: Callable[[], list[np.ndarray]]
) -> list[np.ndarray]:
    """Read each client's sorted indices from the file ``path``, or compute them and write the file.

    Args:
        path: a ``.npz`` file; its folders are created.
        num_samples: number of samples; every index is below it.
        num_clients: N, the number of clients.
        compute: computes each client's indices.

    Raises:
        InputError: the file cannot be written.
    """

    def owners() -> Arrays:
        owner = np.full(num_samples, num_clients)
        for client, index in enumerate(compute()):
            owner[index] = client
        return {"owner": owner}

    def fits(arrays: Arrays) -> bool:
        owner = arrays["owner"]
        if owner.shape != (num_samples,) or owner.dtype != np.int64:
            return False
        return bool(np.all((owner >= 0) & (owner <= num_clients)))

    return by_owner(cached_arrays(path, ("owner",), owners, fits)["owner"], num_clients)


def cached_images(
    path: Path,
    shape: tuple[int, ...],
    fill: Callable[[Images], None],
    map_above: int = MAP_ABOVE,
) -> Images:
    """Read a uint8 array [*shape] from the file ``path``, or fill an array and write the file.

    Args:
        path: a ``.npy`` file; its folders are created.
        shape: shape of the array; a file with another shape counts as damaged.
        fill: a function that sets every element of a given array.
        map_above: files of more than this many bytes are memory-mapped for filling and loading, so
            they may be larger than the memory. A loaded array is mapped copy-on-write: changes of
            the array do not reach the file.

    Raises:
        InputError: the file cannot be written, or the disk has too little space.
    """

    def read() -> Images | None:
        mapped = path.stat().st_size > map_above
        array: Images = np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
        return array if array.dtype == np.uint8 and array.shape == shape else None

    found = _unless_damaged(read)
    if found is None:
        with _writing(path) as temporary:
            _write_images(temporary, shape, fill, map_above)
        found = read()
        assert found is not None
    return found


def _write_images(
    path: Path, shape: tuple[int, ...], fill: Callable[[Images], None], map_above: int
) -> None:
    needed, free = math.prod(shape), shutil.disk_usage(path.parent).free
    if needed > free:  # on a full disk, writing to a mapped file would kill the process
        raise OSError(f"needs {needed:,} bytes, {free:,} are free")
    if needed > map_above:
        mapped = open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        fill(mapped)
        mapped.flush()
    else:
        array = np.empty(shape, dtype=np.uint8)
        fill(array)
        np.save(path, array)


def _unless_damaged(read: Callable[[], T | None]) -> T | None:
    """The result of ``read``, a function that reads a file; None for a missing or damaged file."""
    try:
        return read()
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None


def remove_leftovers(cache: Path) -> None:
    """Remove the temporary files of processes that were killed while they wrote a cache file."""
    name = re.compile(r"\.[0-9a-f]{8}\..+\.np[yz]")  # named by atomic_path
    remove_abandoned(path for path in cache.glob("*/.*") if name.fullmatch(path.name))


@contextmanager
def _writing(path: Path) -> Iterator[Path]:
    """Yield the path of a locked temporary file, then rename the file to ``path``.

    An OSError becomes an InputError.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The lock lasts until the file is renamed. Other processes remove unlocked temporary files.
        with ExitStack() as lock, atomic_path(path) as temporary:
            file = lock.enter_context(temporary.open("wb"))
            if try_lock(file) is None:
                file.close()  # some systems do not rename open files
            yield temporary
    except OSError as error:
        raise InputError(f"data.cache: {path} cannot be written ({error})") from error
