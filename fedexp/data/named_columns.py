"""Check the columns that a config names, and name their rows."""

from collections.abc import Sequence
from difflib import get_close_matches

import pandas as pd

from fedexp.errors import InputError

_MOST = 50
"""Largest number of columns that a message lists."""


def check_column(key: str, name: str, columns: Sequence[str], where: str) -> None:
    """Raise InputError with a suggestion if there is no such column.

    Args:
        key: the config key, such as ``data.target``.
        name: the key's value, a column's name.
        columns: names of the existing columns.
        where: place of the columns, such as a path, for the message.
    """
    if name in columns:
        return
    listed = ", ".join(columns[:_MOST]) + (", ..." if len(columns) > _MOST else "")
    similar = get_close_matches(name, columns, n=1)
    suggestion = f" (did you mean {similar[0]}?)" if similar else ""
    raise InputError(f"{key}={name}: {where} has no such column{suggestion}; it has {listed}")


def row_of(found: pd.Series) -> str:
    """The number of the first row where ``found`` [n] is true, in words for a message."""
    return f"row {found.idxmax()} (counted from 0)"


def refuse_missing(key: str, column: pd.Series) -> None:
    """Raise InputError, with ``key`` and the row, if a value of ``column`` [n] is missing."""
    if (absent := column.isna()).any():
        raise InputError(
            f"{key} has no value in {absent.sum()} of {len(column)} rows, first in {row_of(absent)}"
        )
