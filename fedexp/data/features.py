"""Encode columns of numbers and categories as one matrix, with training statistics."""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from fedexp.data.classes import name_of
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

MOST_CATEGORIES = 1000
"""Most categories of a column; more different values are probably names or sentences."""

LARGEST = float(np.finfo(np.float32).max)
"""The largest number of an input."""

Missing = Literal["refuse", "mean"]


class Features:
    """Encodes rows: standardised numbers, then a one-hot column for each category.

    A number x becomes (x - mean) / std with the training rows' mean and std; a constant column
    becomes 0. A missing category, or one that no training row has, is 0 in all columns.

    Args:
        train: the training rows, without target and user columns.
        categorical: columns of numbers that are categories.
        missing: ``refuse`` missing values, or replace missing numbers by the training ``mean``.

    Raises:
        InputError: a column cannot be used.
    """

    def __init__(self, train: pd.DataFrame, categorical: Collection[str], missing: Missing) -> None:
        self.missing = missing
        self.numbers = [
            name
            for name in train.columns
            if is_numeric_dtype(train[name]) and name not in categorical
        ]
        self.categories = {
            name: _categories(train[name]) for name in train.columns if name not in self.numbers
        }
        if not self.width:
            raise InputError("data.path: holds no column beside the target, the user and data.drop")
        values = self._numbers(train)
        if absent := [n for n, x in zip(self.numbers, values.T, strict=True) if np.isnan(x).all()]:
            raise InputError(
                f"data.path: the column {absent[0]} has no value in the training rows; "
                f"leave it out by data.drop=[{absent[0]}]"
            )
        self.mean, self.std = standardisation(values, self._named)

    @property
    def width(self) -> int:
        """d, the width of an input."""
        return len(self.numbers) + sum(map(len, self.categories.values()))

    def encode(self, rows: pd.DataFrame) -> np.ndarray:
        """Encode ``rows``, with the columns of the training rows, as [n, d] float32 inputs."""
        absent = rows[self._columns].isna()
        if absent.any(axis=None):
            self._report(absent.loc[:, absent.any()])
        values = (self._numbers(rows) - self.mean) / self.std
        values = np.where(np.isnan(values), 0.0, values)  # the training mean
        for place in np.flatnonzero((np.abs(values) > LARGEST).any(axis=0)).tolist():
            raise InputError(
                f"{self._named(place)} holds a number that is too large after standardisation"
            )
        hot = [self._one_hot(rows[name], known) for name, known in self.categories.items()]
        return np.concatenate([values, *hot], axis=1, dtype=np.float32, casting="unsafe")

    def _named(self, place: int) -> str:
        return f"data.path: the column {self.numbers[place]}"

    @property
    def _columns(self) -> list[str]:
        return [*self.numbers, *self.categories]

    def _numbers(self, rows: pd.DataFrame) -> np.ndarray:
        """[n, m] float64; NaN for missing numbers."""
        values = np.empty((len(rows), len(self.numbers)))
        for place, name in enumerate(self.numbers):
            try:
                values[:, place] = rows[name].to_numpy(np.float64, na_value=np.nan)
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"data.test_path: the column {name} holds other values than numbers ({error}), "
                    "but numbers in data.path"
                ) from error
        return values

    def _one_hot(self, column: pd.Series, known: Sequence[str]) -> np.ndarray:
        """[n, number of categories] of 0 and 1."""
        number = {name: i for i, name in enumerate(known)}
        place = np.array([number.get(name_of(value), -1) for value in column])
        present = column.notna().to_numpy()
        if unseen := int((present & (place < 0)).sum()):
            LOGGER.warning(
                "%d rows have a value of %s that no training row has; it counts as no category",
                unseen,
                column.name,
            )
        hot: np.ndarray = present[:, None] & (place[:, None] == np.arange(len(known)))
        return hot

    def _report(self, absent: pd.DataFrame) -> None:
        """Report columns with missing values: a warning, or with ``refuse`` an InputError."""
        where = ", ".join(
            f"{name} ({absent[name].sum()}, first in row {absent[name].idxmax()})"
            for name in absent
        )
        if self.missing == "refuse":
            raise InputError(
                f"data.missing=refuse: rows have no value of {where}; mean replaces numbers by the "
                f"mean of the training rows, data.drop=[{absent.columns[0]}] leaves a column out"
            )
        LOGGER.warning("rows have no value of %s; numbers get the training mean", where)


def standardisation(
    values: np.ndarray, name: Callable[[int], str]
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of each column of ``values`` [n, m]; NaN does not count.

    A constant column has the std 1 and its value as the mean, so that it becomes 0 exactly. In
    floats the std of a constant is often not 0: of a hundred times 0.1 it is 1e-17.

    Args:
        values: [n, m], at least one number in each column.
        name: names a column in errors.

    Raises:
        InputError: numbers are too large for their mean or std.
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


def _categories(column: pd.Series) -> list[str]:
    """The column's different values in alphabetical order."""
    found = sorted({name_of(value) for value in column.dropna()})
    if len(found) > MOST_CATEGORIES:
        raise InputError(
            f"data.path: the column {column.name} has {len(found)} different values, too many for "
            f"categories (at most {MOST_CATEGORIES}); leave it out by data.drop=[{column.name}]"
        )
    return found
