"""Columns of a table: their names in a config, their values as numbered classes and as users."""

from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_float_dtype, is_numeric_dtype

from fedexp.errors import InputError

_MOST = 50
"""Largest number of columns that a message lists."""


def check_column(key: str, name: str, columns: Sequence[str], where: str) -> None:
    """Raise InputError, with a similar name, if a configured column does not exist.

    Args:
        key: the config key, such as ``data.target``.
        name: the key's value, a column's name.
        columns: names of the existing columns.
        where: the place of the columns in the message, such as a path.
    """
    if name in columns:
        return
    listed = ", ".join(columns[:_MOST]) + (", ..." if len(columns) > _MOST else "")
    similar = get_close_matches(name, columns, n=1)
    suggestion = f" (did you mean {similar[0]}?)" if similar else ""
    raise InputError(f"{key}={name}: {where} has no such column{suggestion}; it has {listed}")


def row_of(found: pd.Series) -> str:
    """Words for a message that name the first row where ``found`` [n] is true."""
    return f"row {found.idxmax()} (counted from 0)"


def refuse_missing(key: str, column: pd.Series) -> None:
    """If a value of ``column`` [n] is missing, raise an InputError with ``key`` and the row."""
    if (absent := column.isna()).any():
        raise InputError(
            f"{key} has no value in {absent.sum()} of {len(column)} rows, first in {row_of(absent)}"
        )


LARGEST = 2**53
"""Up to this whole number, float64 holds every whole number exactly."""

Classes = tuple[tuple[str, ...], list[np.ndarray]]
"""The names of C classes, and for each column the labels [n] int64, from 0 to C-1."""


def encode_classes(keys: Sequence[str], columns: Sequence[pd.Series]) -> Classes:
    """Turn the columns of targets (text, whole numbers or booleans) into class names and labels.

    Classes are in numerical or alphabetical order.

    Args:
        keys: for each column, the words that name it in messages: the config key, its value and the
            file ("data.target=species: train.csv").
        columns: one column [n] of targets for each split.

    Raises:
        InputError: a target is missing or is not a class, or all rows are of one class.
    """
    for key, column in zip(keys, columns, strict=True):
        refuse_missing(key, column)
        if is_float_dtype(column):
            _check_whole(key, column)
    names, labels = _numbered(columns)
    if len(names) < 2:
        raise InputError(f"{keys[0]} has rows of one class only, {names[0]}")
    return names, labels


def _numbered(columns: Sequence[pd.Series]) -> Classes:
    """Class names in numerical or alphabetical order, and the labels of each column."""
    both = pd.concat(columns, ignore_index=True)
    if is_numeric_dtype(both) and not is_bool_dtype(both):
        classes = np.unique(both)
        names = tuple(name_of(number) for number in classes)
        return names, [np.searchsorted(classes, each.to_numpy()) for each in columns]
    words = [np.array([name_of(value) for value in each], dtype=object) for each in columns]
    names = tuple(sorted(set().union(*(set(each) for each in words))))
    number = {name: i for i, name in enumerate(names)}
    return names, [np.array([number[word] for word in each], dtype=np.int64) for each in words]


def _check_whole(key: str, column: pd.Series) -> None:
    """Raise InputError if a float in the column is not a whole number, or is above 2^53."""
    broken = (column != np.floor(column)) | (column.abs() > LARGEST)
    if broken.any():
        raise InputError(
            f"{key} holds numbers such as {column[broken].iloc[0]:g} in {row_of(broken)}, "
            f"{column.nunique():,} different values in all; this is classification, so a target "
            "should be a class: text, a boolean, or a whole number up to 2^53; divide numbers into "
            "classes, such as low and high, or use another column"
        )


def encode_users(key: str, column: pd.Series) -> np.ndarray:
    """Convert a column [n] of users to text. Raises InputError if a user is missing."""
    refuse_missing(key, column)
    return np.array([name_of(value) for value in column])


def name_of(value: object) -> str:
    """A value as text. 1.0 becomes "1": missing values turn a column of integers into floats."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
