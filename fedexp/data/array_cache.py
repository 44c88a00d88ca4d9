"""Arrays kept on disk, so that slow files are read once."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np

from fedexp.errors import InputError
from fedexp.state.atomic import atomic_path

Arrays = dict[str, np.ndarray]
"""Name -> array."""


def cached_arrays(path: Path, names: Collection[str], compute: Callable[[], Arrays]) -> Arrays:
    """The arrays kept at ``path``; computed and written if the file is absent or damaged.

    Args:
        path: a ``.npz`` file; its folders are created.
        names: what the file must hold.
        compute: yields the arrays with these names.

    Raises:
        InputError: the folder cannot be written.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        arrays = compute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary:
            np.savez(temporary, **cast(dict[str, Any], arrays))
    except OSError as error:
        raise InputError(f"data.cache: {path} cannot be written ({error})") from error
    return arrays
