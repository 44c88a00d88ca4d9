"""Availability by a recorded trace."""

import math
from pathlib import Path

import numpy as np

from fedexp.errors import InputError
from fedexp.system.availability import MARGIN, Availability
from fedexp.system.columns import read_columns


class Trace(Availability):
    """A client is available in the intervals that a CSV file lists.

    Each row has the columns ``client``, ``from`` and ``to``: the start and end of an interval in
    seconds. A client without a row is never available. After the last ``to`` of the file the trace
    begins again.

    Args:
        file: path of the file.

    Raises:
        InputError: the file cannot be read, a client's number is not whole, or an interval does
            not end after its start.
    """

    def __init__(self, file: str) -> None:
        self.place = f"availability.file={file}"
        columns = read_columns("availability.file", Path(file), ("client", "from", "to"))
        if (wrong := np.flatnonzero(columns["client"] % 1)).size:
            found = columns["client"][wrong[0]]
            raise InputError(
                f"{self.place}: client is {found:g} in row {wrong[0] + 1}; should be a whole number"
            )
        self.clients = columns["client"]
        self.starts, self.ends = columns["from"], columns["to"]
        self.period = float(self.ends.max())
        if (wrong := np.flatnonzero(self.ends <= self.starts)).size:
            raise InputError(f"{self.place}: in row {wrong[0] + 1} to should be larger than from")

    def setup(self, num_clients: int, seed: int) -> None:
        """Drop the rows of clients that the population does not have."""
        self.num_clients, known = num_clients, self.clients < num_clients
        self.clients, self.starts, self.ends = (
            values[known] for values in (self.clients, self.starts, self.ends)
        )
        self.clients = self.clients.astype(np.int64)  # larger numbers may not fit

    def present(self, now: float) -> np.ndarray:
        """Which clients have an interval that contains ``now`` modulo the period, bool [N]."""
        time = now % self.period
        present = np.zeros(self.num_clients, dtype=bool)
        present[self.clients[(self.starts <= time) & (time < self.ends)]] = True
        return present

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The next start of an interval of one of the clients; infinite if they have none."""
        starts = self.starts[np.isin(self.clients, clients)]
        if not len(starts):
            return math.inf
        whole, time = divmod(now, self.period)
        later = starts[starts > time]
        if not len(later):
            return float((whole + 1) * self.period + starts.min()) + MARGIN
        return float(whole * self.period + later.min()) + MARGIN
