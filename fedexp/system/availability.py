"""Which clients are available at a time: all of them, a random part, or by day and night."""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedexp.core.randomness import numpy_generator

Share = Annotated[float, Field(gt=0, le=1)]

Seconds = Annotated[float, Field(ge=0.001)]

MARGIN = 1e-6
"""Seconds added to a computed time of arrival, so that rounding does not put it too early."""


class Availability:
    """The clients that can be chosen at a time; the base class: always all (``always``).

    A client that leaves during its turn still ends it: only the start of a round counts.

    Attributes:
        is_always: whether all clients are always available.
    """

    is_always: ClassVar[bool] = True

    def setup(self, num_clients: int, seed: int) -> None:
        """Called once, before the first round."""

    def present(self, now: float) -> np.ndarray:
        """[N] bool: the clients that are available at this simulated time."""
        raise NotImplementedError

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The first time after ``now`` at which one of ``clients`` [n] may become available.

        None of them is available now. Raises InputError if there is no such time.
        """
        raise NotImplementedError


class Bernoulli(Availability):
    """Each client is available with probability p, drawn anew every ``every`` seconds.

    Args:
        p: the probability.
        every: seconds; in between the same clients stay available.
    """

    is_always = False

    def __init__(self, p: Share, every: Seconds) -> None:
        self.p, self.every = p, every

    def setup(self, num_clients: int, seed: int) -> None:
        """See ``Availability``."""
        self.num_clients, self.seed = num_clients, seed

    def present(self, now: float) -> np.ndarray:
        """The draw of the interval that ``now`` is in."""
        generator = numpy_generator(self.seed, "availability", int(now // self.every))
        present: np.ndarray = generator.random(self.num_clients) < self.p
        return present

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The start of the next interval."""
        return (now // self.every + 1) * self.every + MARGIN


class Diurnal(Availability):
    """Each client is available for the first share ``duty`` of each of its periods, such as days.

    A client's period begins at a phase of its own, drawn uniformly once: clients live in all time
    zones.

    Args:
        period: seconds.
        duty: share of the period.
    """

    is_always = False

    def __init__(self, period: Seconds, duty: Share) -> None:
        self.period, self.duty = period, duty

    def setup(self, num_clients: int, seed: int) -> None:
        """Draw the phases [N], shares of a period."""
        self.phases: np.ndarray = numpy_generator(seed, "availability").random(num_clients)

    def present(self, now: float) -> np.ndarray:
        """See ``Availability``."""
        present: np.ndarray = self._share_of_period(now) < self.duty
        return present

    def next_arrival(self, now: float, clients: np.ndarray) -> float:
        """The first beginning of a period of one of the clients."""
        left = 1 - self._share_of_period(now)[clients].max()
        return now + float(left) * self.period + MARGIN

    def _share_of_period(self, now: float) -> np.ndarray:
        """[N] how much of its period has passed for each client, 0 to 1."""
        return (now / self.period + self.phases) % 1
