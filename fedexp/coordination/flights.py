"""The clients in flight: they have the global model, but their updates have not arrived."""

import math
from dataclasses import dataclass
from typing import Any

from fedexp.core.messages import Tensors, Update


@dataclass(frozen=True)
class Flight:
    """One client's turn in simulated time, from its download to the arrival of its update.

    Attributes:
        client: the number of the client.
        round: the round in which the client started.
        start: the time of the start, in seconds since the start of the run.
        end: the time at which the update arrives, or the notice that the client dropped out.
        base: the global weights that the client started from.
        update: the update; None if the client drops out.
    """

    client: int
    round: int
    start: float
    end: float
    base: Tensors
    update: Update | None


@dataclass(frozen=True)
class Departure:
    """A client that has started and that the simulator has not trained yet.

    Attributes:
        client: the number of the client.
        time: the time of the start, in seconds since the start of the run.
        download_bytes: bytes of the message.
        earliest_end: the time at which an update without any bytes would arrive.
    """

    client: int
    time: float
    download_bytes: int
    earliest_end: float


class Flights:
    """The flights whose end is known, in the order of the ``begin`` calls.

    They are the turns of trained clients and of clients that drop out.
    """

    def __init__(self) -> None:
        self._flights: list[Flight] = []

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def clients(self) -> set[int]:
        """The clients whose flight ``land`` has not returned yet."""
        return {flight.client for flight in self._flights}

    @property
    def next_end(self) -> float:
        """The time at which the next flight ends; infinity if there is none."""
        return min((flight.end for flight in self._flights), default=math.inf)

    def working(self, now: float) -> int:
        """How many clients train or send: their updates have not arrived at this time.

        Clients that have dropped out do neither.
        """
        return sum(flight.update is not None and flight.end > now for flight in self._flights)

    def begin(self, flight: Flight) -> None:
        """Add a flight, the turn of one client."""
        self._flights.append(flight)

    def land(self, now: float, updates: int) -> list[Flight]:
        """Remove and return the flights that have ended, with at most ``updates`` updates.

        Flights that ended earlier are taken first. If several ended at the same time, the lowest
        client number is taken first. The result is in the order of the ``begin`` calls.
        """
        ended = [flight for flight in self._flights if flight.end <= now]
        taken = set()
        for flight in sorted(ended, key=lambda each: (each.end, each.client)):
            if flight.update is not None:
                if not updates:
                    break
                updates -= 1
            taken.add(flight.client)
        landed = [flight for flight in self._flights if flight.client in taken]
        self._flights = [flight for flight in self._flights if flight.client not in taken]
        return landed

    def state_dict(self) -> dict[str, Any]:
        """All flights, as containers of tensors and numbers."""
        return {"flights": [_contents(flight) for flight in self._flights]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self._flights = [_flight(each) for each in state["flights"]]


def _contents(flight: Flight) -> dict[str, Any]:
    update = flight.update and dict(vars(flight.update))
    return {**vars(flight), "update": update}


def _flight(contents: dict[str, Any]) -> Flight:
    update = contents["update"] and Update(**contents["update"])
    return Flight(**{**contents, "update": update})
