"""Which clients are available at a given time: all, a random part, or each at its time of day."""

from typing import Annotated

import numpy as np
from pydantic import Field

from fedexp.config.schema import PositiveShare
from fedexp.core.randomness import numpy_generator

Seconds = Annotated[float, Field(ge=0.001)]

MARGIN = 1e-6
"""Seconds added to a computed time of arrival, so that rounding does not put it too early."""


class Availability:
    """Decides which clients can be chosen at a given time; this base class (``always``) allows all.

    A client that becomes unavailable during its turn still finishes the turn: only the start of a
    round counts.
    """

    @property
    def is_always(self) -> bool:
        """Whether all clients are always available."""
        return type(self).present is Availability.present

    def setup(self, num_clients: int, seed: int) -> None:
        """Prepare for the run; called once, before the first round."""

    def present(self, now: float) -> np.ndarray:
        """Which clients are available at this time, bool [N]; not called if ``is_always``."""
        raise NotImplementedError

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The first time after ``now`` at which one of ``clients`` [n] may become available.

        None of these clients is available at ``now``. The result is infinite if they never will be.
        """
        raise NotImplementedError


class Bernoulli(Availability):
    """Each client is available with probability p, drawn anew every ``every`` seconds.

    Args:
        p: the probability.
        every: seconds between two draws; in between, the same clients stay available.
    """

    def __init__(self, p: PositiveShare, every: Seconds) -> None:
        self.p, self.every = p, every

    def setup(self, num_clients: int, seed: int) -> None:
        """Store N and the seed; each draw depends on the seed and the interval."""
        self.num_clients, self.seed = num_clients, seed

    def present(self, now: float) -> np.ndarray:
        """Which clients are available in the interval that contains ``now``, bool [N]."""
        generator = numpy_generator(self.seed, "availability", int(now // self.every))
        present: np.ndarray = generator.random(self.num_clients) < self.p
        return present

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The start of the next interval."""
        return (now // self.every + 1) * self.every + MARGIN


class Diurnal(Availability):
    """Each client is available in the first part of each period, such as a day.

    For each client, the time at which its periods begin is drawn once, uniformly. So the clients
    behave as if they lived in all time zones.

    Args:
        period: the length of a period in seconds.
        duty: the share of each period in which a client is available.
    """

    def __init__(self, period: Seconds, duty: PositiveShare) -> None:
        self.period, self.duty = period, duty

    def setup(self, num_clients: int, seed: int) -> None:
        """Draw the share of each client's period that has passed at time 0, [N]."""
        self.phases: np.ndarray = numpy_generator(seed, "availability").random(num_clients)

    def present(self, now: float) -> np.ndarray:
        """Which clients are in the first part of their period, bool [N]."""
        present: np.ndarray = self._share_of_period(now) < self.duty
        return present

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The earliest time at which a new period of one of the clients begins."""
        left = 1 - self._share_of_period(now)[clients].max()
        return now + float(left) * self.period + MARGIN

    def _share_of_period(self, now: float) -> np.ndarray:
        """The share (0 to 1) of each client's current period that has passed, [N]."""
        return (now / self.period + self.phases) % 1
