"""Encode columns of numbers and categories as one matrix, by the training rows' statistics."""

import logging
from collections.abc import Callable, Collection

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from torch import Tensor

from fedexp.data.classes import name_of
from fedexp.data.preparations.rows import Missing, Rows, numbers_of
from fedexp.data.readers.row_numbers import warn_of_row_numbers
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

MOST_CATEGORIES = 1000
"""Largest number of a column's categories; more different values are probably names or texts."""

_MANY = 20
"""The log warns if a column has more categories than this number and than half of its rows."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that an input can hold."""


def fit_rows(train: pd.DataFrame, categorical: Collection[str], missing: Missing) -> Rows:
    """Compute the encoding of rows: means, deviations and categories of the training rows.

    A constant column becomes 0. The log warns of columns that seem to name the row.

    Args:
        train: the training rows, without target and user columns.
        categorical: columns of numbers to treat as categories.
        missing: see ``Rows``.

    Raises:
        InputError: a column cannot be used.
    """
    numbers = [
        name for name in train.columns if is_numeric_dtype(train[name]) and name not in categorical
    ]
    categories = {name: _categories(train[name]) for name in train.columns if name not in numbers}
    if not numbers and not any(categories.values()):
        raise InputError("data.path: holds no column beside the target, the user and data.drop")
    values = numbers_of(train, numbers, "data.path")
    if absent := [n for n, x in zip(numbers, values.T, strict=True) if np.isnan(x).all()]:
        raise InputError(
            f"data.path: the column {absent[0]} has no value in the training rows; "
            f"leave it out by data.drop=[{absent[0]}]"
        )
    warn_of_row_numbers(train, numbers)
    named = "data.path: the column {}".format
    mean, std = standardisation(values, lambda place: named(numbers[place]))
    return Rows(tuple(numbers), tuple(mean.tolist()), tuple(std.tolist()), categories, missing)


def encode(rows: Rows, table: pd.DataFrame) -> Tensor:
    """Encode a table's rows as inputs [n, d]. Raises InputError if a cell cannot be encoded."""
    inputs = rows.prepare(rows.encoded(table, "data.test_path"))
    for place in inputs.isinf().any(dim=0).nonzero().flatten().tolist():
        raise InputError(
            f"data.path: the column {rows.numbers[place]} holds a number that is too large after "
            "standardisation"
        )
    return inputs


def standardisation(
    values: np.ndarray, name: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of each column of ``values`` [n, m]; NaN is ignored.

    A constant column gets the std 1 and its value as the mean, so that it becomes exactly 0.
    Because of rounding, its computed std may differ from 0: for a hundred values of 0.1 it is
    1e-17.

    Args:
        values: [n, m], at least one number in each column.
        name: a function from a column's number to its name in errors.

    Raises:
        InputError: the mean or std overflows.
    """
    lowest, highest = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = np.nanmean(values, axis=0), np.nanstd(values, axis=0)
    for place in np.flatnonzero(~np.isfinite(mean) | ~np.isfinite(std)).tolist():
        largest = max(abs(lowest[place]), abs(highest[place]))
        raise InputError(f"{name(place)}: numbers up to {largest:g} are too large to standardise")
    rounding = np.finfo(np.float64).eps * np.maximum(np.abs(lowest), np.abs(highest))
    constant = (lowest == highest) | (std <= rounding)
    return np.where(constant, lowest, mean), np.where(constant, 1.0, std)


def _categories(column: pd.Series) -> tuple[str, ...]:
    """The column's different values in alphabetical order."""
    found = sorted({name_of(value) for value in column.dropna()})
    if len(found) > MOST_CATEGORIES:
        raise InputError(
            f"data.path: the column {column.name} has {len(found)} different values, too many for "
            f"categories (at most {MOST_CATEGORIES}); leave it out by data.drop=[{column.name}]"
        )
    if len(found) > max(_MANY, len(column) / 2):
        LOGGER.warning(
            "data.path: the column %s has %d different values in %d training rows, and each "
            "becomes an input; if they are names, dates, or numbers with a unit, correct it, or "
            "leave it out by data.drop=[%s]",
            *(column.name, len(found), len(column), column.name),
        )
    return tuple(found)
