"""A figure together with the numbers that it shows."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any] | Sequence[str]]
"""Name -> numbers or names."""


class DataFigure(Figure):
    """A figure that is saved together with the numbers that it shows.

    They are written beside the picture, so that it can be drawn again, or beside another run's.

    Args:
        data: name -> array; lists of names are arrays of strings.
        options: those of ``matplotlib.figure.Figure``.
    """

    def __init__(self, data: Arrays, **options: Any) -> None:
        super().__init__(**options)
        self.data = data
