"""The clients that a picture shows: all of a small population, some of a large one."""

import math

from torch import Tensor

ALL_CLIENTS = 10_000
"""The largest population of which a picture shows all clients."""


def evenly_spaced(clients: Tensor, most: int) -> Tensor:
    """Every n-th row of ``clients`` [N, ...]; the smallest n that leaves at most ``most`` rows."""
    return clients[:: max(1, math.ceil(len(clients) / most))]
