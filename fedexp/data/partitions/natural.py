"""Clients that are the users of the dataset."""

from typing import Literal

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import apportion_to_all, by_owner
from fedexp.errors import InputError


def natural(
    users: np.ndarray | None,
    num_clients: int,
    seed: int,
    take: Literal["random", "first", "group"] = "random",
    split_users: Literal["none", "even"] = "none",
) -> list[np.ndarray]:
    """A client is a user; the samples of users that are not taken go to nobody.

    Args:
        users: [n] who each sample came from.
        num_clients: N.
        seed: decides which users are taken, and which samples a part of a user gets.
        take: which of more than N users: N at ``random``, the ``first`` N in the order of the
            samples, or all of them, dealt at random in a ``group`` for each client, evenly by
            number.
        split_users: what to do with fewer than N users: refuse, or cut each at random into parts of
            ``even`` size, a client each. A user gets a number of parts in proportion to its
            samples, by largest remainder, and at least one.

    Raises:
        InputError: the dataset has no user ids, or fewer users than clients.
    """
    if users is None:
        raise InputError(
            "partition=natural: this dataset has no user ids; choose another partition"
        )
    names, first, user = np.unique(users, return_index=True, return_inverse=True)
    if num_clients > len(names) and split_users == "none":
        raise InputError(
            f"clients.count={num_clients}: partition=natural allows at most {len(names)}, "
            "the number of users, or more with partition.split_users=even; clients.per_round is at "
            "most clients.count"
        )
    generator = numpy_generator(seed, "partition")
    if num_clients > len(names):
        return _parts(user, num_clients, generator)
    in_order = np.argsort(np.argsort(first))
    place = in_order if take == "first" else generator.permutation(len(names))
    client = place % num_clients if take == "group" else np.minimum(place, num_clients)
    return by_owner(client[user], num_clients)


def _parts(user: np.ndarray, num_clients: int, generator: np.random.Generator) -> list[np.ndarray]:
    """Users 0, 1, ... cut into parts, those of a user one after another."""
    sizes = np.bincount(user)
    parts = apportion_to_all(num_clients, sizes, generator)
    return [
        np.sort(part)
        for index, number in zip(by_owner(user, len(sizes)), parts, strict=True)
        for part in np.array_split(generator.permutation(index), number)
    ]
