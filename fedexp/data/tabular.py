"""Rows of a table with numbers and categories; each row has a class."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import torch

from fedexp.compatibility.unread import given
from fedexp.core.description import Description
from fedexp.data.classes import Classes, encode_classes, encode_users
from fedexp.data.dataset import Dataset, Source, Split
from fedexp.data.features import encode, fit_rows
from fedexp.data.named_columns import check_column
from fedexp.data.origin import Origin
from fedexp.data.preparations.rows import Missing, Rows
from fedexp.data.table_file import check_cells, read_table
from fedexp.data.train_test import (
    SplitSeed,
    TestFraction,
    UserSplit,
    check_user_column,
    check_users,
    divide,
)
from fedexp.errors import InputError

_FEW = 10
"""A target with at most this many classes never needs ``many_classes``."""


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
            for every 5 rows. Such a column probably holds numbers to predict, or names of rows.

    Raises:
        InputError: the constructor raises it if an argument is invalid, ``describe`` if a file or a
            column is missing or unusable, ``load`` if a cell cannot be encoded.
    """

    unread_if = MappingProxyType(
        {
            "test_fraction": {"test_path": given},
            "split_seed": {"test_path": given},
        }
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
        """The shape of the inputs and the names of the classes; reads the files."""
        return Description(self.path.stem, (self._rows.width,), self._targets[0])

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
        if (own := self._users(table)) is not None and (others := self._users(tests)) is not None:
            check_users(self.split, list(own), list(others), f"{self.path} and {self.test_path}")
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
        if not self.many_classes and classes > _FEW and classes * 5 >= rows:
            raise InputError(
                f"{key}: {self.path} has {classes} classes in {rows} rows; such a column is often "
                "a number to predict or the name of a row; use another column, or "
                "data.many_classes=true"
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
