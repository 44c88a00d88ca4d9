"""Clients that are the users of the dataset."""

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import by_owner
from fedexp.errors import InputError


def natural(users: np.ndarray | None, num_clients: int, seed: int) -> list[np.ndarray]:
    """A client is a user; with more users than clients, they are dealt at random, evenly by number.

    Args:
        users: [n] who each sample came from.
        num_clients: N.
        seed: decides which users a client stands for.

    Raises:
        InputError: the dataset has no user ids, or fewer users than clients.
    """
    if users is None:
        raise InputError(
            "partition=natural: this dataset has no user ids; choose another partition"
        )
    names, user = np.unique(users, return_inverse=True)
    if num_clients > len(names):
        raise InputError(
            f"clients.count={num_clients}: partition=natural allows at most {len(names)}, "
            f"the number of users"
        )
    client = numpy_generator(seed, "partition").permutation(np.arange(len(names)) % num_clients)
    return by_owner(client[user], num_clients)
