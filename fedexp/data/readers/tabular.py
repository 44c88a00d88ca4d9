"""Rows of a table with numbers and categories; each row has a class."""

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api.types import is_numeric_dtype

from fedexp.config.compatibility.unread import given
from fedexp.core.description import Description
from fedexp.data.classes import Classes, check_column, encode_classes, encode_users, row_of
from fedexp.data.dataset import Dataset, Origin, Source, Split
from fedexp.data.preparations.rows import Missing, Rows
from fedexp.data.readers.features import encode, fit_rows
from fedexp.data.train_test import (
    SplitSeed,
    TestFraction,
    UserSplit,
    check_user_column,
    check_users,
    divide,
)
from fedexp.errors import InputError, readable

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")

_LIKE_A_NUMBER = r"\s*[-+]?[\d.,'_ ]*\d[\d.,'_ ]*(?:[eE][-+]?\d+)?\s*"
"""Matches numbers, also in notations that pandas reads as text, such as 12,5 or 1 000."""

_FEW = 10
"""A target with at most this many classes never needs ``many_classes``."""

_MANY_NUMBERS = 100
"""A target of numbers with more different values always needs ``many_classes``."""


def read_table(key: str, path: Path) -> pd.DataFrame:
    """Read the table in ``path``: .csv or .tsv with a row of names, or .parquet.

    The index of the result counts the rows from 0.

    Raises:
        InputError: the file cannot be read, has no rows, or has two columns with the same name. The
            message names ``key``.
    """
    place, kind = f"{key}={path}", path.suffix.lower()
    if kind not in (*_SEPARATORS, *_PARQUET):
        raise InputError(f"{place}: should be a .csv, .tsv or .parquet file")
    try:
        with readable(place, ValueError):  # damaged, empty, or not in UTF-8
            parquet = kind in _PARQUET
            table = pd.read_parquet(path) if parquet else _read_text(path, _SEPARATORS[kind])
    except ImportError as error:
        raise InputError(f"{place}: needs pyarrow; pip install pyarrow") from error
    except pd.errors.ParserWarning as error:
        raise InputError(f"{place}: rows have more values than the row of names") from error
    if not len(table):
        raise InputError(f"{place}: holds no rows")
    return table.reset_index(drop=True).rename(columns=str)  # Parquet may store an index


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    """Read a UTF-8 file.

    Raises:
        ValueError: two columns share a name, of which pandas would rename one, or the file has
            another separator, as a spreadsheet writes it where numbers have decimal commas.
    """
    form: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig"}
    names = pd.read_csv(path, header=None, nrows=1, dtype=str, **form).iloc[0].dropna()
    if twice := names[names.duplicated()].to_list():
        raise ValueError(f"two columns are named {twice[0]}")
    if len(names) == 1 and (other := re.search(r"[;\t,|]", names[0])):
        raise ValueError(
            f"is separated by {other[0]!r}, not by {separator!r}; save it with commas and decimal "
            "points, or with tabs as .tsv"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        table: pd.DataFrame = pd.read_csv(path, low_memory=False, index_col=False, **form)
    return table


def check_cells(place: str, table: pd.DataFrame, categorical: Collection[str]) -> pd.DataFrame:
    """Refuse columns without a name, and infinite values or text in columns of numbers.

    Args:
        place: the config key and the path, for the message.
        table: the rows.
        categorical: columns whose cells may have any value.

    Returns:
        The table. Whole numbers beyond 64 bits, which pandas reads as objects, become float64.

    Raises:
        InputError: a cell or a column is refused; the message names the column, the value and the
            row.
    """
    for name in table.columns.difference(list(categorical), sort=False):
        if re.fullmatch(r"Unnamed: \d+", name):
            raise InputError(
                f"{place}: a column has no name, such as the row numbers that pandas writes; give "
                f"it a name, or use data.drop=['{name}']"
            )
        column = table[name]
        if _is_mixed(column):
            column = _numbers(place, column)
            table = table.assign(**{name: column})
        if is_numeric_dtype(column):
            infinite = np.isinf(column.to_numpy(np.float64, na_value=np.nan))
            if infinite.any():
                row = row_of(pd.Series(infinite, column.index))
                raise InputError(f"{place}: the column {name} holds an infinite number in {row}")
    return table


def _numbers(place: str, column: pd.Series) -> pd.Series:
    """Convert the column to numbers; missing cells stay missing.

    Raises InputError if a cell holds anything but a number.
    """
    numbers = pd.to_numeric(column, errors="coerce")
    broken = numbers.isna() & column.notna()
    if broken.any():
        raise InputError(
            f"{place}: the column {column.name} holds numbers, but {column[broken].iloc[0]!r} in "
            f"{row_of(broken)}; correct it, or use data.categorical=[{column.name}] if its values "
            "are categories"
        )
    return numbers


def _is_mixed(column: pd.Series) -> bool:
    """Whether most values of a column that is not numeric look like numbers.

    False for a column of type text (not object) in which every cell is a plain number.
    """
    if is_numeric_dtype(column):
        return False
    words = column.dropna().astype(str)
    if words.str.fullmatch(_LIKE_A_NUMBER).sum() <= len(words) / 2:
        return False
    # A Parquet column of type text is text, even if every cell is a plain number.
    return column.dtype == object or bool(pd.to_numeric(words, errors="coerce").isna().any())


@dataclass
class Tabular(Source):
    """A CSV or Parquet file with one row per sample; float32 inputs [n, d].

    Numbers are standardised by mean and standard deviation of the training rows; categories are
    one-hot encoded. All columns are inputs except the target, the user and dropped columns.

    Args:
        path: the file: .csv, .tsv (with a row of names) or .parquet; ``~`` is expanded.
        target: column of the class: text, whole numbers or booleans.
        user: column of the user for the natural partition; None if there is none.
        test_path: file of the test rows; None draws them from ``path``.
        test_fraction: share for testing: of the rows, or with ``split=users`` of the users. Without
            users, the test rows are drawn from each class; with users, ``split`` names the rule.
        split: ``within`` draws test rows from the rows of each user. ``users`` draws whole users
            for testing; ``path`` and ``test_path`` must then have different users.
        split_seed: seed of the draw for testing; independent of the run's seed.
        drop: columns to leave out.
        categorical: columns of numbers to treat as categories; text columns always are categories.
            If most values of a column that is not listed here are numbers, all must be numbers.
        missing: ``refuse`` raises an error for a missing value. With ``mean`` a missing number
            becomes the training mean, and a missing category becomes all zeros.
        many_classes: whether to accept a target with more than 10 classes and at least one class
            for every 5 rows, or with more than 100 numbers as classes. Such a column probably holds
            numbers to predict, or names of rows.

    Raises:
        InputError: the constructor raises it if an argument is invalid, ``describe`` if a file or a
            column is missing or unusable, ``load`` if a cell cannot be encoded.
    """

    unread_if = MappingProxyType(
        {"test_fraction": {"test_path": given}, "split_seed": {"test_path": given}}
    )

    path: Path
    target: str
    user: str | None
    test_path: Path | None
    test_fraction: TestFraction
    split: UserSplit
    split_seed: SplitSeed
    drop: list[str]
    categorical: list[str]
    missing: Missing
    many_classes: bool

    def __post_init__(self) -> None:
        check_user_column(self.split, self.user)
        self.path = self.path.expanduser()
        self.test_path = self.test_path and self.test_path.expanduser()

    def describe(self) -> Description:
        """The shape and names of the inputs and the names of the classes; reads the files."""
        inputs, classes = self._rows.inputs, self._targets[0]
        return Description(self.path.stem, (len(inputs),), classes, columns=inputs)

    def load(self, cache: Path) -> Dataset:
        """Load the dataset; nothing is cached."""
        train, test = (
            Split(
                encode(self._rows, self._inputs(table)),
                torch.from_numpy(labels),
                self._users(table),
                origin=Origin(f"data.target={self.target}: {file}", table.index.to_numpy()),
            )
            for table, labels, file in zip(self._tables, self._targets[1], self._files, strict=True)
        )
        return Dataset(self.describe(), train, test, raw=self._rows)

    @cached_property
    def _tables(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """The training rows and the test rows."""
        table = self._table("data.path", self.path)
        if self.test_path is None:
            labels = self._encode([table])[1][0]
            users = self._users(table)
            parts = divide(labels, users, self.split, self.test_fraction, self.split_seed)
            return table.iloc[parts[0]], table.iloc[parts[1]]
        tests = self._table("data.test_path", self.test_path)
        for name in table.columns:
            if name not in tests.columns:
                raise InputError(f"data.test_path={self.test_path}: has no column {name}")
        own, others = self._users(table), self._users(tests)
        check_users(self.split, own, others, f"{self.path} and {self.test_path}")
        return table, tests[table.columns]

    @property
    def _files(self) -> tuple[Path, Path]:
        """The file of the training rows and that of the test rows."""
        return self.path, self.test_path or self.path

    @cached_property
    def _targets(self) -> Classes:
        """The class names, and the labels of both splits."""
        return self._encode(self._tables)

    @cached_property
    def _rows(self) -> Rows:
        return fit_rows(self._inputs(self._tables[0]), self.categorical, self.missing)

    def _encode(self, tables: Sequence[pd.DataFrame]) -> Classes:
        key = f"data.target={self.target}"
        found = encode_classes(
            [f"{key}: {file}" for file in self._files[: len(tables)]],
            [table[self.target] for table in tables],
        )
        classes, rows = len(found[0]), sum(map(len, tables))
        is_number = is_numeric_dtype(tables[0][self.target]) and self.target not in self.categorical
        many = (classes > _FEW and classes * 5 >= rows) or (is_number and classes > _MANY_NUMBERS)
        if many and not self.many_classes:
            raise InputError(
                f"{key}: this is classification, but the target column {self.target} of "
                f"{self.path} has {classes:,} different values in {rows:,} rows; use another "
                "column, or divide numbers into classes, such as low and high; if each value is a "
                "class, use data.many_classes=true"
            )
        return found

    def _inputs(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.drop(columns=[self.target, *([] if self.user is None else [self.user])])

    def _users(self, table: pd.DataFrame) -> np.ndarray | None:
        """The user of each row, [n] strings; None without a user column."""
        if self.user is None:
            return None
        return encode_users(f"data.user={self.user}: the column", table[self.user])

    def _table(self, key: str, path: Path) -> pd.DataFrame:
        """Read a file, drop unused columns and check the others."""
        table = read_table(key, path)
        user = [] if self.user is None else [self.user]
        named = {"data.target": [self.target], "data.user": user}
        named |= {"data.drop": self.drop, "data.categorical": self.categorical}
        for option, names in named.items():
            for name in names:
                check_column(option, name, list(table.columns), str(path))
        used = [self.target, *user, *self.drop]
        if twice := [name for name in (self.target, *user) if used.count(name) > 1]:
            raise InputError(
                f"data.target, data.user and data.drop: must be different columns, but {twice[0]} "
                "is named twice"
            )
        return check_cells(
            f"{key}={path}", table.drop(columns=self.drop), [*user, *self.categorical]
        )
