"""Read columns of a Hugging Face dataset as arrays; errors for missing values name the row."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from fedexp.errors import InputError


def column(part: Any, name: str) -> pd.Series:
    """Read the column ``name`` of ``part``, such as each row's class or user, as a Series [n]."""
    values: pd.Series = part.select_columns([name]).to_pandas()[name]
    return values


def dense(key: str, part: Any, name: str) -> np.ndarray:
    """Read a column of n numbers, or of n nested lists of one shape, as an array [n, ...].

    Args:
        key: the config key with the column and the split, for messages.
        part: a ``datasets.Dataset``.
        name: the column.

    Raises:
        InputError: a number is missing, infinite or NaN, or a list is missing or has another shape;
            the message names the row.
    """
    found: list[np.ndarray] = []
    for start, chunk in _chunks(part, name):
        values, shape = chunk, [len(chunk)]
        while _is_list(values):
            lengths, values = _unfold(key, values, start, rows=shape[0])
            shape.append(int(lengths[0]))
            expected = found[0].shape[len(shape) - 1] if found else shape[-1]
            if len(others := np.flatnonzero(lengths != expected)):
                row = start + int(others[0]) * shape[0] // len(lengths)
                raise InputError(
                    f"{key} has a list of {lengths[others[0]]} values in row {row}, but of "
                    f"{expected} in row 0; all should have one shape"
                )
        found.append(_complete(key, values, start, rows=shape[0]).reshape(shape))
    return np.concatenate(found)


def ragged(key: str, part: Any, name: str) -> list[np.ndarray]:
    """Read a column of n lists of whole numbers as n arrays, which may differ in length.

    Raises InputError if a list or a number is missing; the message names the row.
    """
    found: list[np.ndarray] = []
    for start, chunk in _chunks(part, name):
        lengths, values = _unfold(key, chunk, start, rows=len(chunk))
        row = np.repeat(np.arange(len(chunk)), lengths)
        if values.null_count:
            missing = row[np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0]]
            raise InputError(f"{key} has a list with a missing value in row {start + missing}")
        found += np.split(values.to_numpy(), np.cumsum(lengths)[:-1])
    return found


def _chunks(part: Any, name: str) -> Iterator[tuple[int, Any]]:
    """Yield each piece of a column: the number of its first row, and its Arrow array."""
    start = 0
    for chunk in part.select_columns([name]).with_format("arrow")[:][name].chunks:
        yield start, getattr(chunk, "storage", chunk)  # the library's own types wrap lists
        start += len(chunk)


def _is_list(values: Any) -> bool:
    from pyarrow import types

    kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return any(each(values.type) for each in kinds)


def _unfold(key: str, lists: Any, start: int, rows: int) -> tuple[np.ndarray, Any]:
    """The length of each list, and the values of all lists in one Arrow array."""
    from pyarrow.compute import list_value_length

    _refuse_nulls(key, lists, start, rows)
    return list_value_length(lists).to_numpy(), lists.flatten()


def _complete(key: str, values: Any, start: int, rows: int) -> np.ndarray:
    """The values as a NumPy array. Raises InputError if a value is missing or not finite."""
    _refuse_nulls(key, values, start, rows)
    numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
    if len(broken := np.flatnonzero(~np.isfinite(numbers))):
        row = start + int(broken[0]) * rows // len(numbers)
        raise InputError(f"{key} holds {numbers[broken[0]]} in row {row}; use finite numbers")
    return numbers


def _refuse_nulls(key: str, values: Any, start: int, rows: int) -> None:
    """Raise InputError if a value is missing.

    The ``values`` belong to ``rows`` rows from row ``start`` on; each row has equally many values.
    """
    if values.null_count:
        missing = values.is_null().to_numpy(zero_copy_only=False)
        row = start + int(np.flatnonzero(missing)[0]) * rows // len(missing)
        raise InputError(f"{key} has a missing value in row {row}")
