"""Encode columns of numbers and categories as one matrix, with training statistics."""

import logging
from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from fedexp.data.classes import name_of
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

MOST_CATEGORIES = 1000
"""Most categories of a column; more different values are probably names or sentences."""

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
        self.mean, self.std = standardisation(values)

    @property
    def width(self) -> int:
        """d, the width of an input."""
        return len(self.numbers) + sum(map(len, self.categories.values()))

    def encode(self, rows: pd.DataFrame) -> np.ndarray:
        """Encode ``rows``, with the columns of the training rows, as [n, d] float32 inputs."""
        if gaps := {str(n): int(c) for n, c in rows[self._columns].isna().sum().items() if c}:
            self._report(gaps)
        values = (self._numbers(rows) - self.mean) / self.std
        values = np.where(np.isnan(values), 0.0, values)  # the training mean
        hot = [self._one_hot(rows[name], known) for name, known in self.categories.items()]
        return np.concatenate([values, *hot], axis=1, dtype=np.float32, casting="unsafe")

    @property
    def _columns(self) -> list[str]:
        return [*self.numbers, *self.categories]

    def _numbers(self, rows: pd.DataFrame) -> np.ndarray:
        """[n, m] float64; NaN for missing numbers."""
        values = np.empty((len(rows), len(self.numbers)))
        for place, name in enumerate(self.numbers):
            try:
                values[:, place] = pd.to_numeric(rows[name]).to_numpy(np.float64, na_value=np.nan)
            except (ValueError, TypeError) as error:
                raise InputError(
                    f"data.test_path: the column {name} holds other values than numbers ({error}), "
                    "but numbers in data.path"
                ) from error
            if np.isinf(values[:, place]).any():
                raise InputError(f"data.path: the column {name} holds an infinite number")
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

    def _report(self, gaps: dict[str, int]) -> None:
        """Report columns with missing values: a warning, or with ``refuse`` an InputError."""
        where = ", ".join(f"{name} ({count})" for name, count in gaps.items())
        if self.missing == "refuse":
            raise InputError(
                f"data.missing=refuse: rows have no value of {where}; mean replaces numbers by the "
                f"mean of the training rows, data.drop=[{next(iter(gaps))}] leaves a column out"
            )
        LOGGER.warning("rows have no value of %s; numbers get the training mean", where)


def standardisation(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and std of each column [n, m] without NaN; the std of a constant column is 1."""
    mean = np.nanmean(values, axis=0) if values.size else np.zeros(values.shape[1])
    std = np.nanstd(values, axis=0) if values.size else np.ones(values.shape[1])
    return mean, np.where(std > 0, std, 1.0)


def _categories(column: pd.Series) -> list[str]:
    """The column's different values in alphabetical order."""
    found = sorted({name_of(value) for value in column.dropna()})
    if len(found) > MOST_CATEGORIES:
        raise InputError(
            f"data.path: the column {column.name} has {len(found)} different values, too many for "
            f"categories (at most {MOST_CATEGORIES}); leave it out by data.drop=[{column.name}]"
        )
    return found
