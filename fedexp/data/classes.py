"""Convert targets of any type to numbered classes with names, and users of any type to text."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from fedexp.errors import InputError

Classes = tuple[tuple[str, ...], list[np.ndarray]]
"""C names, and the labels of each column, [n] int64 from 0 to C-1."""


def encode_classes(key: str, columns: Sequence[pd.Series]) -> Classes:
    """Class names and labels of columns of text, whole numbers or booleans.

    Classes are in numerical or alphabetical order.

    Args:
        key: the config key with its value, for messages ("data.target=species").
        columns: the targets of each split, [n].

    Raises:
        InputError: a target is missing or is not a class.
    """
    both = pd.concat(columns, ignore_index=True)
    if missing := int(both.isna().sum()):
        raise InputError(f"{key}: has no value in {missing} of {len(both)} rows")
    if is_numeric_dtype(both) and not is_bool_dtype(both):
        numbers = both.to_numpy(dtype=np.float64)
        if broken := [number for number in numbers if number != np.floor(number)]:
            raise InputError(
                f"{key}: holds numbers such as {broken[0]:g}; a target should be a class: text, a "
                "whole number or a boolean"
            )
        classes = np.unique(numbers)
        names = tuple(name_of(number) for number in classes)
        return names, [np.searchsorted(classes, each.to_numpy(np.float64)) for each in columns]
    words = [np.array([name_of(value) for value in each], dtype=object) for each in columns]
    names = tuple(sorted(set().union(*(set(each) for each in words))))
    number = {name: i for i, name in enumerate(names)}
    return names, [np.array([number[word] for word in each], dtype=np.int64) for each in words]


def encode_users(key: str, column: pd.Series) -> np.ndarray:
    """Convert a column [n] of users to text. Raises InputError if one is missing."""
    if missing := int(column.isna().sum()):
        raise InputError(f"{key}: has no value in {missing} of {len(column)} rows")
    return np.array([name_of(value) for value in column])


def name_of(value: object) -> str:
    """A category's name; 1.0 becomes 1, because missing values turn whole numbers into floats."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    return str(value)
