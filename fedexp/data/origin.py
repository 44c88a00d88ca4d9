"""Where the samples of a split were read, for messages about them."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Origin:
    """The file or folder of a split, and the row or the file of each sample in it.

    Two splits that were drawn from one place have origins with the same ``place``.

    Attributes:
        place: words that name the config key and the file, and for a table the column, such as
            "data.target=species: test.csv".
        rows: [n] the row of each sample, counted from 0, or the path of its file.
    """

    place: str
    rows: np.ndarray

    def take(self, index: np.ndarray | slice) -> "Origin":
        """The origin of the samples at ``index``."""
        return Origin(self.place, self.rows[index])

    def of(self, position: int) -> str:
        """Words for the sample at this position."""
        row = self.rows[position]
        is_number = isinstance(row, int | np.integer)
        return f"{self.place}, row {row} (counted from 0)" if is_number else f"{self.place}/{row}"
