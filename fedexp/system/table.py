"""Devices from a table: fedexp's profiles, or a file of your own."""

from pathlib import Path

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.system.columns import check_positive, read_columns
from fedexp.system.devices import Devices
from fedexp.system.source import CountFlops, DeviceSource, in_samples

PROFILES = Path(__file__).parent / "profiles"
_SPEEDS = ("samples_per_second", "flops_per_second")


class Table(DeviceSource):
    """A client's device is a row of a CSV file.

    The columns are ``samples_per_second`` or ``flops_per_second``, ``download`` and ``upload``
    (bytes per second), ``latency`` (seconds each way), and possibly ``name``, which may be any
    text. With a column ``client`` each row belongs to the client of this number. Without it, a row
    is drawn for each client, at random from the seed and with replacement.

    Args:
        file: path of the file, or the name of a profile in ``fedexp/system/profiles``.

    Raises:
        InputError: the file cannot be read, or a value is wrong.
    """

    def __init__(self, file: str) -> None:
        path = PROFILES / f"{file}.csv"
        path = path if "/" not in file and path.is_file() else Path(file)
        self.place = f"system.file={file}"
        self.columns = read_columns(
            "system.file", path, ("download", "upload", "latency"), (*_SPEEDS, "client")
        )
        if sum(name in self.columns for name in _SPEEDS) != 1:
            raise InputError(f"{self.place}: needs one of the columns {' and '.join(_SPEEDS)}")
        check_positive(self.place, self.columns, (*_SPEEDS, "download", "upload"))

    def check(self, num_clients: int) -> None:
        """With a column ``client``, raise InputError if a client has no row or several rows."""
        if "client" not in self.columns:
            return
        rows = np.sort(self.columns["client"])
        expected = np.arange(num_clients)
        if not np.array_equal(rows[rows < num_clients], expected):
            found = set(rows.tolist())
            missing = next((client for client in expected.tolist() if client not in found), None)
            reason = "two rows have the same client" if missing is None else f"lacks {missing}"
            raise InputError(
                f"{self.place}: the column client should have each of the clients 0 to "
                f"{num_clients - 1} once; {reason}"
            )

    def draw(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> Devices:
        """Make the devices of all clients from their rows; see ``DeviceSource``."""
        rows = self._rows(num_clients, seed)
        in_flops = "flops_per_second" in self.columns
        speeds = self.columns["flops_per_second" if in_flops else "samples_per_second"][rows]
        return Devices(
            in_samples(speeds, in_flops, flops_of_sample),
            *(self.columns[name][rows] for name in ("download", "upload", "latency")),
        )

    def _rows(self, num_clients: int, seed: int) -> np.ndarray:
        """The index of each client's row, [N]."""
        if "client" in self.columns:
            return np.argsort(self.columns["client"], kind="stable")[:num_clients]
        generator = numpy_generator(seed, "devices")
        return generator.integers(len(self.columns["latency"]), size=num_clients)
