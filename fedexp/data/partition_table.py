"""The file ``partition.csv`` of a run: each client's number of samples of each class."""

import csv
from pathlib import Path

import torch
from torch import Tensor

from fedexp.data.federated import FederatedData
from fedexp.state.atomic import atomic_path

_BLOCK = 10_000
"""Number of clients that are written at a time, to bound the memory."""


def write_partition(path: Path, data: FederatedData) -> None:
    """Write one row for each client and one column for each class.

    For a population drawn on demand, only the clients in ``counted`` have rows.

    Args:
        path: the file, which is overwritten. Its first column is ``client``; the other columns have
            the class names.
        data: the data of all clients.
    """
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["client", *data.description.classes])
        blocks = (torch.split(each, _BLOCK) for each in (data.counted, data.counted_classes))
        for clients, counts in zip(*blocks, strict=True):
            writer.writerows(torch.cat((clients[:, None], counts), dim=1).tolist())


def read_partition(path: Path, clients: int, classes: int) -> Tensor | None:
    """Class counts [N, C], N = ``clients``; None if the file is unreadable or of another shape."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            _, *rows = csv.reader(file)
        counts = torch.tensor([[int(cell) for cell in row[1:]] for row in rows])
    except (OSError, ValueError, csv.Error):
        return None
    return counts if counts.shape == (clients, classes) else None
