"""A figure together with the numbers that it shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure


class TabledFigure(Figure):
    """A figure whose numbers are saved beside it as CSV.

    Args:
        table: column -> values, all columns of the same length.
        options: of ``Figure``.

    Attributes:
        table: as given.
    """

    def __init__(self, table: Mapping[str, Sequence[float]], **options: Any) -> None:
        super().__init__(**options)
        self.table = table
