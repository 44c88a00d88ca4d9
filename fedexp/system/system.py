"""The simulated time of a run: the clients' devices, and a clock that adds up the rounds."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fedexp.config.compatibility.traits import CHOOSES_BY_DEVICE, DRAWS_REPEATEDLY, SIMULATED_TIME
from fedexp.config.schema import System as SystemConfig
from fedexp.errors import InputError
from fedexp.system.availability import Availability
from fedexp.system.devices import Devices
from fedexp.system.round_time import RoundTime, round_time
from fedexp.system.source import CountFlops, DeviceSource
from fedexp.system.turns import TurnRecord

_MOST_ARRIVALS = 10_000
"""A run ends if no client is available at this number of possible arrival times in a row."""


class System:
    """The simulated devices and the clock. Each process of a run has a copy; all are equal.

    Args:
        source: gives each client a device, or none.
        availability: decides which clients can be chosen at a given time.
        config: the deadline, and the number of clients to invite; more than K is over-selection.
        clients_per_round: K, the number of updates that a round takes at most.

    Attributes:
        traits: properties of devices and availability, such as simulated time; other components
            may need or forbid them.
        forbids: trait -> the error if another component has it.
        devices: the clients' devices after ``setup``; None if there is no simulated time.
        now: seconds of simulated time since the start of the first round.
        deadline: seconds in which a client must have sent its update; None: no deadline.
        takes_partial: whether a client that is too slow for the deadline takes fewer steps.
        needed: K, the number of updates after which a round with over-selection ends.
        invited: number of clients that the sampler chooses.
        upload_bytes: bytes of the largest update in the last round with updates; 0 if there was
            none.
    """

    def __init__(
        self,
        source: DeviceSource,
        availability: Availability,
        config: SystemConfig,
        clients_per_round: int,
    ) -> None:
        _check(source, availability, config, clients_per_round)
        self._source, self._availability = source, availability
        self.deadline, self.takes_partial = config.deadline, config.late == "partial"
        self.needed, self.invited = clients_per_round, config.invite or clients_per_round
        self.devices: Devices | None = None
        self.now, self.upload_bytes = 0.0, 0
        self._downloads: Mapping[int, int] = {}
        self._expected_upload = 0
        self.forbids: dict[str, str] = {}
        traits = {SIMULATED_TIME} if source.has_devices else set()
        if self.limits_turns or not availability.is_always:
            traits.add(CHOOSES_BY_DEVICE)
        if self.invited > self.needed:
            self.forbids[DRAWS_REPEATEDLY] = (
                f"system.invite={self.invited}: counts different clients, but {{other}} can draw a "
                "client several times; should be null"
            )
        self.traits = frozenset(traits)

    @property
    def limits_turns(self) -> bool:
        """Whether a deadline or over-selection may leave out clients of the cohort."""
        return self.deadline is not None or self.invited > self.needed

    def check(self, num_clients: int) -> None:
        """Raise InputError if the population is too small or lacks devices; needs no data."""
        self._source.check(num_clients)
        if self.invited > num_clients:
            raise InputError(
                f"system.invite={self.invited}: should be at most clients.count={num_clients}"
            )

    def setup(self, num_clients: int, seed: int, flops_of_sample: CountFlops) -> None:
        """Give each client its device; called once, before the first round."""
        if self._source.has_devices:
            self.devices = self._source.draw(num_clients, seed, flops_of_sample)
        self._availability.setup(num_clients, seed)

    def available(
        self, clients: np.ndarray, busy: Collection[int] = (), waits: bool = True
    ) -> np.ndarray | None:
        """Which of ``clients`` [n] can be chosen now: bool [n], or None for all of them.

        If no client can be chosen, the clock first advances to the next arrival. If only busy
        clients will ever be available, no client can be chosen.

        Args:
            clients: the clients with data.
            busy: clients that cannot be chosen.
            waits: whether the clock may advance.

        Raises:
            InputError: no client ever arrives, and none is busy; or 10,000 arrival times in a row
                make no client available.
        """
        if self._availability.is_always and not busy:
            return None
        free: np.ndarray = ~np.isin(clients, list(busy))
        if self._availability.is_always:
            return free
        for _ in range(_MOST_ARRIVALS):
            present: np.ndarray = self._availability.present(self.now)[clients] & free
            if present.any() or not waits or not free.any():
                return present
            arrival = self._availability.next_arrival(self.now, clients[free])
            if math.isinf(arrival) and busy:
                return present
            if math.isinf(arrival):
                raise InputError("availability: no client with data is ever available")
            self.now = arrival
        raise InputError(
            f"availability: no client with data became available up to {self.now:g} seconds of "
            "simulated time; make clients available more often"
        )

    def begin_turns(self, downloads: Mapping[int, int], expected_upload: int) -> None:
        """Record the bytes that each client of the cohort downloads, and those of an update."""
        self._downloads, self._expected_upload = downloads, expected_upload

    def planned_seconds(self, client: int, samples: int, upload_bytes: int) -> float:
        """The seconds of a client's turn in this round."""
        assert self.devices is not None
        planned = TurnRecord(client, samples, 0, self._downloads[client], upload_bytes, "sent")
        return self.devices.seconds_of([planned])[0]

    def is_late(self, client: int, samples: int, upload_bytes: int) -> bool:
        """Whether a client is in the cohort and its turn takes longer than the deadline."""
        if self.deadline is None or client not in self._downloads:
            return False
        return self.planned_seconds(client, samples, upload_bytes) > self.deadline

    def advance(self, turns: Sequence[TurnRecord]) -> RoundTime | None:
        """Advance the clock by a round; return the round's time, or None without simulated time."""
        self._downloads = {}
        if self.devices is None:
            return None
        found = round_time(turns, self.devices, self.deadline, self.now, self._expected_upload)
        self.now = found.end
        uploads = [turn.upload_bytes for turn in turns if turn.outcome == "sent"]
        self.upload_bytes = max(uploads, default=self.upload_bytes)
        return found

    def state_dict(self) -> dict[str, Any]:
        """The clock and the upload size, for a checkpoint; empty without simulated time."""
        return {} if self.devices is None else {"now": self.now, "upload_bytes": self.upload_bytes}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.now, self.upload_bytes = state["now"], state["upload_bytes"]


def _check(
    source: DeviceSource, availability: Availability, config: SystemConfig, clients_per_round: int
) -> None:
    """Raise InputError if a key needs missing devices, or ``invite`` is below the cohort size."""
    deadline, invite = config.deadline, config.invite
    keys = {
        f"system.deadline={deadline}": deadline is not None,
        f"system.invite={invite}": invite is not None,
        "availability": not availability.is_always,
    }
    for key, is_set in keys.items():
        if is_set and not source.has_devices:
            raise InputError(
                f"{key}: needs simulated devices; choose them, for example system=phones"
            )
    if invite is not None and invite < clients_per_round:
        raise InputError(
            f"system.invite={invite}: should be at least clients.per_round={clients_per_round}"
        )
