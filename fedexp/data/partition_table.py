"""``partition.csv``: how many samples of each class every client holds."""

import csv
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

PARTITION = "partition.csv"


def write_partition(path: Path, counts: Tensor, classes: Sequence[str]) -> None:
    """Write one row for each client and one column for each class.

    Args:
        path: the file; overwritten.
        counts: [N, C] samples of each class at each client.
        classes: C names, the headings of the columns after ``client``.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["client", *classes])
        writer.writerows([client, *row] for client, row in enumerate(counts.tolist()))
