"""The clients that are held out of the whole run: they never train."""

from collections.abc import Sequence

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.rounding import rounded_down


def held_out_clients(clients: Sequence[np.ndarray], share: float, seed: int) -> list[int]:
    """Draw a share of the clients that have data; return their numbers in ascending order.

    Args:
        clients: for each client, the positions of its training samples.
        share: share of the clients, at least 0 and below 1; their number is rounded down.
        seed: seed of the run.

    Raises:
        InputError: a positive ``share`` would draw no client, or every client that has data.
    """
    if not share:
        return []
    holders = [client for client, index in enumerate(clients) if len(index)]
    count = rounded_down(share, len(holders))
    if not 0 < count < len(holders):
        raise InputError(
            f"clients.held_out={share:g}: would hold out {count} of {len(holders)} clients with "
            "data; should be a share that leaves some on both sides"
        )
    drawn = numpy_generator(seed, "held_out").choice(holders, count, replace=False)
    found: list[int] = sorted(drawn.tolist())
    return found
