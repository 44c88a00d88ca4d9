"""The devices of all clients, and the seconds that the clients' turns take on them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedexp.system.turns import TurnRecord


@dataclass(frozen=True)
class Devices:
    """One simulated device for each of N clients.

    Attributes:
        samples_per_second: [N] float64, training samples that a device computes in a second.
        download: [N] float64, bytes per second.
        upload: [N] float64, bytes per second.
        latency: [N] float64, delay of a message in seconds, besides the time for its bytes. It is
            the same in both directions.
    """

    samples_per_second: np.ndarray
    download: np.ndarray
    upload: np.ndarray
    latency: np.ndarray

    def seconds(
        self,
        clients: np.ndarray | Sequence[int],
        samples: np.ndarray | Sequence[int],
        download_bytes: np.ndarray | Sequence[int],
        upload_bytes: np.ndarray | Sequence[int],
    ) -> np.ndarray:
        """Seconds [n] of the turns of ``clients`` [n].

        A turn takes 2 latencies + download bytes / download speed + samples / computing speed +
        upload bytes / upload speed seconds. The other arguments are numbers or arrays [n].
        """
        which = np.asarray(clients, dtype=np.int64)
        found: np.ndarray = (
            2 * self.latency[which]
            + np.asarray(download_bytes) / self.download[which]
            + np.asarray(samples) / self.samples_per_second[which]
            + np.asarray(upload_bytes) / self.upload[which]
        )
        return found

    def seconds_of(self, turns: Sequence[TurnRecord]) -> list[float]:
        """The seconds of each of the recorded ``turns``."""
        columns = [(t.client, t.samples, t.download_bytes, t.upload_bytes) for t in turns]
        if not columns:
            return []
        found: list[float] = self.seconds(*np.array(columns).T).tolist()
        return found
