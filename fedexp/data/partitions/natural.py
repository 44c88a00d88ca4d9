"""The natural partition: the dataset's users are the clients."""

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
    """Give each client the samples of one user; drop the samples of unused users.

    Args:
        users: [n] user of each sample.
        num_clients: N.
        seed: seed of the choice of users and of the cutting of a user's samples.
        take: the rule for more than N users. ``random`` takes N random users, ``first`` the first N
            in the order of the samples. ``group`` takes all users and deals them at random into
            N groups, one per client; group sizes differ by at most one user.
        split_users: the rule for fewer than N users. ``none`` raises an error. ``even`` cuts each
            user's samples at random into parts, one part per client; the sizes of a user's parts
            differ by at most one sample. A user's number of parts is in proportion to the number of
            its samples, rounded by largest remainder, and at least one.

    Raises:
        InputError: the dataset has no user ids, or it has fewer users than clients and
            ``split_users`` is ``none``.
    """
    if users is None:
        raise InputError(
            "partition=natural: this dataset has no user ids; use another partition, or say "
            "where they are: data.user=COLUMN (data=tabular, data=hf), data.user_pattern "
            "(data=image_folder)"
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
    """Cut the users' samples into N = ``num_clients`` parts, in the order of the users."""
    sizes = np.bincount(user)
    parts = apportion_to_all(num_clients, sizes, generator)
    return [
        np.sort(part)
        for index, number in zip(by_owner(user, len(sizes)), parts, strict=True)
        for part in np.array_split(generator.permutation(index), number)
    ]
