"""The partition PxCy: each of x clients has y classes."""

from random import Random
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import share
from fedexp.errors import InputError


def shards(
    labels: np.ndarray,
    num_clients: int,
    classes_per_client: PositiveInt,
    seed: int,
    holders: Literal["even", "random"] = "even",
) -> list[np.ndarray]:
    """Give each of x clients exactly y classes: FedGELA's partition PxCy.

    The clients that hold a class share its samples evenly.

    Args:
        labels: [n] class of each sample.
        num_clients: N, the x of PxCy.
        classes_per_client: the y of PxCy.
        seed: seed of the choice of each client's classes and samples.
        holders: the rule that draws the clients that hold a class, its holders. With ``even`` each
            of the C classes has N*y/C holders, rounded down or up. ``random`` is the rule of
            FedGELA's released code, with the same result for the same seed: each client has y
            places, and the first C of all N*y places get the classes 0 to C-1. Each later place
            gets a random class that its client lacks. So the numbers of holders and the client
            sizes are uneven.

    Raises:
        InputError: y exceeds the number of classes, N*y is smaller than the number of classes, or a
            class has fewer samples than holders.
    """
    generator = numpy_generator(seed, "partition")
    classes, sizes = np.unique(labels, return_counts=True)
    where = f"partition.classes_per_client={classes_per_client} with clients.count={num_clients}"
    if not classes_per_client <= len(classes) <= classes_per_client * num_clients:
        raise InputError(
            f"{where}: the data have {len(classes)} classes; a client cannot hold more, "
            f"and all clients together cannot hold fewer"
        )
    shape = num_clients, len(classes), classes_per_client
    holds = _even_holders(*shape, generator) if holders == "even" else _random_holders(*shape, seed)
    for label, size, needed in zip(classes, sizes, holds.sum(axis=0), strict=True):
        if size < needed:
            raise InputError(f"{where}: class {label} has {size} samples for {needed} holders")
    weights = np.zeros((num_clients, classes.max() + 1), dtype=bool)
    weights[:, classes] = holds
    return share(labels, weights, generator)


def _even_holders(
    num_clients: int, num_classes: int, classes_per_client: int, generator: np.random.Generator
) -> np.ndarray:
    """Give each client in turn the classes that have the fewest holders so far.

    Ties are broken at random. Returns [N, C] bool: whether a client (of N) holds a class (of C).
    """
    holds = np.zeros((num_clients, num_classes), dtype=bool)
    for client in range(num_clients):
        order = np.lexsort((generator.random(num_classes), holds.sum(axis=0)))
        holds[client, order[:classes_per_client]] = True
    return holds


def _random_holders(
    num_clients: int, num_classes: int, classes_per_client: int, seed: int
) -> np.ndarray:
    """Whether each of N clients holds each of C classes, [N, C] bool, as in FedGELA's code.

    Each client has ``classes_per_client`` places. The first C of all clients' places get the
    classes 0 to C-1. Every later place gets a random class; Python's ``random`` draws again
    while the client already has the drawn class.
    """
    draws = Random(seed)
    holds = np.zeros((num_clients, num_classes), dtype=bool)
    for place in range(num_clients * classes_per_client):
        client, label = place // classes_per_client, place
        if place >= num_classes:
            label = draws.randint(0, num_classes - 1)
            while holds[client, label]:
                label = draws.randint(0, num_classes - 1)
        holds[client, label] = True
    return holds
