"""Frames as CSV that is safe in a spreadsheet: no cell is a formula."""

from __future__ import annotations

import re

import pandas as pd

_FORMULA = re.compile(
    r"[=@\t\r\uff1d\uff0b\uff0d\uff20]|[+-](?!(\d+\.?\d*|\.\d+|inf)(e[+-]?\d+)?$)"
)
"""Matches the beginning of a formula, also with full-width signs; never a signed number."""


def csv(frame: pd.DataFrame) -> bytes:
    """A data frame as CSV; a cell or heading like a formula begins with an apostrophe."""
    return frame.map(_as_text).rename(columns=_as_text).to_csv(index=False).encode()


def _as_text(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
