"""The preparation of table rows: standardised numbers, then one-hot encoded categories."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.data.classes import name_of
from fedexp.data.preparations.preparation import Preparation
from fedexp.errors import InputError

LOGGER = logging.getLogger(__name__)

Missing = Literal["refuse", "mean"]


@dataclass(frozen=True)
class Rows(Preparation):
    """Encodes rows of a table by the statistics of the training rows.

    A number x becomes (x - mean) / std. A category is one-hot encoded. A category that is missing,
    or that no training row has, becomes all zeros.

    The raw tensor has the columns of numbers, then the columns of categories. In it, a missing
    number is NaN. A category is its position in the column's list of categories, or -1 if the list
    lacks the category.

    Attributes:
        numbers: the columns of numbers.
        mean: mean of each column of numbers.
        std: standard deviation of each column of numbers.
        categories: for each column of categories, the categories in order.
        missing: ``refuse`` raises an error for missing values. ``mean`` replaces missing numbers by
            the training mean.
    """

    dtype = torch.float64

    numbers: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    categories: dict[str, tuple[str, ...]]
    missing: Missing

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one raw row: [number of columns]."""
        return (len(self.columns),)

    @property
    def form(self) -> str:
        """The raw inputs in words: type, shape and order of the columns."""
        shown = [*self.numbers, *(f"place in categories[{name!r}]" for name in self.categories)]
        return f"rows [n, {len(shown)}], float64: {', '.join(shown)}"

    @property
    def columns(self) -> list[str]:
        """The columns of the table that are used, in order."""
        return [*self.numbers, *self.categories]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The name of each number that the model gets for a row, in order."""
        hot = (f"{name}={value}" for name, known in self.categories.items() for value in known)
        return (*self.numbers, *hot)

    def read(self, raw: Any) -> Tensor:
        """Read a table or a dict with the ``columns`` in any order; other columns are ignored."""
        try:
            table = pd.DataFrame(raw)
        except (TypeError, ValueError) as error:
            raise InputError(f"predict: takes a table with {', '.join(self.columns)}") from error
        if absent := [name for name in self.columns if name not in table.columns]:
            raise InputError(
                f"predict: the table has no column {absent[0]}; it takes {', '.join(self.columns)}"
            )
        return self.encoded(table, "predict")

    def encoded(self, table: pd.DataFrame, place: str) -> Tensor:
        """Turn a table with the ``columns`` into the raw tensor; errors name the table's ``place``.

        Raises:
            InputError: a cell of a column of numbers is not a number, or missing values are
                refused.
        """
        absent = table[self.columns].isna()
        if absent.any(axis=None):
            self._report(absent.loc[:, absent.any()])
        places = [self._places(table[name], known) for name, known in self.categories.items()]
        columns = [*numbers_of(table, self.numbers, place).T, *places]
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))

    def prepare(self, raw: Tensor) -> Tensor:
        """Encode the n raw rows as d = ``width`` numbers each; return float32 [n, d]."""
        count = len(self.numbers)
        mean, std = (raw.new_tensor(values) for values in (self.mean, self.std))
        values = (raw[:, :count] - mean) / std
        if self.missing == "mean":
            values = values.nan_to_num(0.0, torch.inf, -torch.inf)
        hot = [
            F.one_hot(raw[:, count + number].long() + 1, len(known) + 1)[:, 1:]
            for number, known in enumerate(self.categories.values())
        ]
        return torch.cat([values, *hot], dim=1).float()

    def examples(self, count: int) -> Tensor:
        """``count`` valid raw rows of ones; lower places for columns of one category or none."""
        row = [1.0] * len(self.numbers)
        row += [min(1, len(known) - 1) for known in self.categories.values()]
        return torch.tensor(row, dtype=self.dtype).repeat(count, 1)

    def _places(self, column: pd.Series, known: Sequence[str]) -> np.ndarray:
        """Position [n] of each value among the ``known`` categories; -1 if missing or unknown."""
        number = {name: place for place, name in enumerate(known)}
        present = column.notna().to_numpy()
        found = np.array([number.get(name_of(value), -1) for value in column])
        if unseen := int((present & (found < 0)).sum()):
            LOGGER.warning(
                "%d rows have a value of %s that no training row has; it counts as no category",
                unseen,
                column.name,
            )
        return np.where(present, found, -1)

    def _report(self, absent: pd.DataFrame) -> None:
        """Log which columns lack values, or raise an InputError if ``missing`` is ``refuse``."""
        where = ", ".join(
            f"{name} ({absent[name].sum()}, first in row {absent[name].idxmax()})"
            for name in absent
        )
        if self.missing == "refuse":
            raise InputError(
                f"data.missing=refuse: rows have no value of {where}; data.missing=mean replaces "
                "numbers by the mean of the training rows and counts categories as none, "
                f"data.drop=[{absent.columns[0]}] leaves a column out"
            )
        LOGGER.warning(
            "of %d rows some have no value of %s; numbers get the training mean, categories count "
            "as none",
            len(absent),
            where,
        )


def numbers_of(table: pd.DataFrame, names: Sequence[str], key: str) -> np.ndarray:
    """The m columns ``names`` as numbers, [n, m] float64. A missing number is NaN.

    Raises:
        InputError: a cell is not a number. The message names ``key``.
    """
    values = np.empty((len(table), len(names)))
    for place, name in enumerate(names):
        try:
            values[:, place] = table[name].to_numpy(np.float64, na_value=np.nan)
        except (ValueError, TypeError) as error:
            raise InputError(
                f"{key}: the column {name} holds other values than numbers ({error}), but numbers "
                "in the training rows"
            ) from error
    return values
