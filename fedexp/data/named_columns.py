"""Check the columns that a config names; name rows in error messages."""

from collections.abc import Sequence
from difflib import get_close_matches

import pandas as pd

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
