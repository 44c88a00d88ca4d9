"""A uint8 array kept on disk, so that images are decoded once; memory-mapped if it is large."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap

from fedexp.errors import InputError
from fedexp.state.atomic import atomic_path

Images = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
"""A uint8 array."""

MAP_ABOVE = 2**30
"""Files of more bytes than this (1 GiB) are memory-mapped, smaller ones are read into memory."""


def cached_array(
    path: Path,
    shape: tuple[int, ...],
    fill: Callable[[Images], None],
    map_above: int = MAP_ABOVE,
) -> Images:
    """The uint8 array [*shape] kept at ``path``; filled and written if absent or damaged.

    Args:
        path: a ``.npy`` file; its folders are created.
        shape: what the file must hold; anything else counts as damaged.
        fill: writes every element of the array it is given.
        map_above: size in bytes above which the file is mapped, while it is filled and when it is
            loaded, so that it may be larger than the memory. A loaded array is mapped
            copy-on-write: it is writable, the file never changes.

    Raises:
        InputError: the folder cannot be written, or its disk has too little room.
    """
    found = _load(path, shape, map_above)
    if found is None:
        try:
            _create(path, shape, fill, map_above)
        except OSError as error:
            raise InputError(f"data.cache: {path} cannot be written ({error})") from error
        found = _load(path, shape, map_above)
        assert found is not None
    return found


def _load(path: Path, shape: tuple[int, ...], map_above: int) -> Images | None:
    """The array, or None if the file is absent, damaged or of another shape."""
    try:
        large = path.stat().st_size > map_above
        array: Images = np.load(path, mmap_mode="c" if large else None, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.dtype == np.uint8 and array.shape == shape else None


def _create(
    path: Path, shape: tuple[int, ...], fill: Callable[[Images], None], map_above: int
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    needed, free = int(np.prod(shape)), shutil.disk_usage(path.parent).free
    if needed > free:  # writing to a mapped file on a full disk would kill the process
        raise OSError(f"needs {needed:,} bytes, {free:,} are free")
    with atomic_path(path) as temporary:
        if needed > map_above:
            mapped = open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
            fill(mapped)
            mapped.flush()
        else:
            array = np.empty(shape, dtype=np.uint8)
            fill(array)
            np.save(temporary, array)
