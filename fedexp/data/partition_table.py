"""The file ``partition.csv`` of a run: each client's number of samples of each class."""

import csv
from pathlib import Path

import torch
from torch import Tensor

from fedexp.data.federated import FederatedData
from fedexp.state.atomic import atomic_path
from fedexp.state.run_folder import CLIENT_NAME

_BLOCK = 10_000
"""Number of clients that are written at a time, to bound the memory."""


def write_partition(path: Path, data: FederatedData) -> None:
    """Write one row for each client and one column for each class.

    For a population drawn on demand, only the clients in ``counted`` have rows.

    Args:
        path: the file, which is overwritten. Its first column is ``client``. The second is
            ``client_name`` if clients have names. The other columns have the class names.
        data: the data of all clients.
    """
    with (
        atomic_path(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors="backslashreplace") as file,
    ):
        writer = csv.writer(file)
        name = [] if data.names is None else [CLIENT_NAME]
        writer.writerow(["client", *name, *data.description.classes])
        blocks = (torch.split(each, _BLOCK) for each in (data.counted, data.counted_classes))
        for clients, counts in zip(*blocks, strict=True):
            for client, own in zip(clients.tolist(), counts.tolist(), strict=True):
                name = [] if data.names is None else [data.names[client]]
                writer.writerow([client, *name, *own])


def read_partition(path: Path, clients: int, classes: int) -> Tensor | None:
    """Class counts [N, C], N = ``clients``; None if the file is unreadable or of another shape."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        first = 2 if len(header) == classes + 2 and header[1] == CLIENT_NAME else 1
        counts = torch.tensor([[int(cell) for cell in row[first:]] for row in rows])
    except (OSError, ValueError, csv.Error):
        return None
    return counts if counts.shape == (clients, classes) else None
