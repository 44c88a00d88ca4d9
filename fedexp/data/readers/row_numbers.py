"""Warn of columns of numbers that name the row, such as its number, an identifier or a date."""

import logging
from collections.abc import Sequence

import numpy as np
import pandas as pd

LOGGER = logging.getLogger(__name__)

_FEWEST = 50
"""In fewer rows, measurements in whole numbers may all differ, too."""

_ALMOST_ALL = 0.99
"""Share of different values in a column that names the row; some rows may be copies."""


def warn_of_row_numbers(train: pd.DataFrame, columns: Sequence[str]) -> None:
    """Log a warning for each column that seems to name the row.

    Such a column holds valid dates like 20240131, or almost all its values differ and they are
    whole numbers or in order.

    Args:
        train: the training rows, in the order of the file.
        columns: names of columns of numbers.
    """
    for name in columns:
        values = train[name].dropna().to_numpy(np.float64)
        if len(values) >= _FEWEST and _names_rows(values):
            LOGGER.warning(
                "data.path: the column %s has %d different values in %d training rows and looks "
                "like a row number, an identifier or a date, from which a model learns nothing for "
                "new rows; leave it out by data.drop=[%s], unless it is a measurement",
                *(name, len(np.unique(values)), len(train), name),
            )


def _names_rows(values: np.ndarray) -> bool:
    """Whether the values [n] are dates, or almost all different and whole or in order."""
    different, is_whole = len(np.unique(values)), bool((values == np.floor(values)).all())
    if is_whole and different > 1 and _are_dates(values):
        return True
    steps = np.diff(values)
    in_order = bool((steps >= 0).all() or (steps <= 0).all())
    return different >= _ALMOST_ALL * len(values) and (is_whole or in_order)


def _are_dates(values: np.ndarray) -> bool:
    """Whether all whole numbers [n] are dates like 20240131, from 1900 to 2100."""
    if values.min() < 19000101 or values.max() > 21001231:
        return False
    words = pd.Series(values.astype(np.int64)).astype(str)
    return bool(pd.to_datetime(words, format="%Y%m%d", errors="coerce").notna().all())
