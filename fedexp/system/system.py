"""The simulated time of a run: the clients' devices, and a clock that adds up the rounds."""

from collections.abc import Sequence
from typing import Any

from fedexp.compatibility.traits import SIMULATED_TIME
from fedexp.system.devices import Devices
from fedexp.system.round_time import RoundTime, round_time
from fedexp.system.source import CountFlops, DeviceSource
from fedexp.system.turns import TurnRecord


class System:
    """The simulated devices and the clock. Each process of a run has a copy; all are equal.

    Args:
        source: gives each client a device, or none.

    Attributes:
        traits: see ``fedexp.compatibility``.
        devices: the clients' devices after ``setup``; None if there is no simulated time.
        now: seconds of simulated time since the start of the first round.
    """

    def __init__(self, source: DeviceSource) -> None:
        self._source = source
        self.traits = frozenset({SIMULATED_TIME} if source.has_devices else ())
        self.devices: Devices | None = None
        self.now = 0.0

    def check(self, num_clients: int) -> None:
        """Raise InputError if the devices do not fit the population; needs no data."""
        self._source.check(num_clients)

    def setup(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> None:
        """Give each client its device; called once, before the first round."""
        if self._source.has_devices:
            self.devices = self._source.draw(num_clients, seed, flops_of_sample)

    def advance(self, turns: Sequence[TurnRecord]) -> RoundTime | None:
        """Advance the clock by a round with these turns; None without simulated time."""
        if self.devices is None:
            return None
        found = round_time(turns, self.devices, start=self.now)
        self.now = found.end
        return found

    def state_dict(self) -> dict[str, Any]:
        """The clock, for a checkpoint; empty without simulated time."""
        return {} if self.devices is None else {"now": self.now}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.now = state["now"]
