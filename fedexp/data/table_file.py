"""Read a table from a file, and refuse cells that would change the meaning of a column."""

import re
import warnings
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from fedexp.data.named_columns import row_of
from fedexp.errors import InputError

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")

_LIKE_A_NUMBER = r"\s*[-+]?[\d.,'_ ]*\d[\d.,'_ ]*(?:[eE][-+]?\d+)?\s*"
"""Matches numbers, also in notations that pandas reads as text, such as 12,5 or 1 000."""


def read_table(key: str, path: Path) -> pd.DataFrame:
    """Read the table in ``path``: .csv or .tsv with a row of names, or .parquet.

    Raises:
        InputError: the file cannot be read, has no rows, or has two columns with the same name. The
            message names ``key``.
    """
    place, kind = f"{key}={path}", path.suffix.lower()
    if kind not in (*_SEPARATORS, *_PARQUET):
        raise InputError(f"{place}: should be a .csv, .tsv or .parquet file")
    try:
        table = pd.read_parquet(path) if kind in _PARQUET else _read_text(path, _SEPARATORS[kind])
    except ImportError as error:
        raise InputError(f"{place}: needs pyarrow; pip install pyarrow") from error
    except OSError as error:
        raise InputError(f"{place}: cannot be read ({error.strerror or error})") from error
    except pd.errors.ParserWarning as error:
        raise InputError(f"{place}: rows have more values than the row of names") from error
    except ValueError as error:  # damaged, empty, or not in UTF-8
        raise InputError(f"{place}: cannot be read ({' '.join(str(error).split())})") from error
    if not len(table):
        raise InputError(f"{place}: holds no rows")
    return table.rename(columns=str)


def _read_text(path: Path, separator: str) -> pd.DataFrame:
    """Read a UTF-8 file. Raises ValueError if two columns share a name; pandas would rename one."""

    form: dict[str, Any] = {"sep": separator, "encoding": "utf-8-sig"}
    names = pd.read_csv(path, header=None, nrows=1, dtype=str, **form).iloc[0].dropna()
    if twice := names[names.duplicated()].to_list():
        raise ValueError(f"two columns are named {twice[0]}")
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
