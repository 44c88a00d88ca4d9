"""Pure class partition: every client has the same number of classes."""

import numpy as np
from pydantic import PositiveInt

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import share_by_weight
from fedexp.errors import InputError


def shards(
    labels: np.ndarray, num_clients: int, classes_per_client: PositiveInt, seed: int
) -> list[np.ndarray]:
    """PxCy, pure class partition: each of x clients has exactly y classes (FedGELA).

    Every class has floor or ceil of N*y/C holders, chosen at random, who share its samples evenly.

    Args:
        labels: [n] class of each sample.
        num_clients: N, the x of PxCy.
        classes_per_client: y.
        seed: decides the classes and samples of each client.

    Raises:
        InputError: y exceeds the number of classes, N*y is too small for every class to have a
            holder, or a class has fewer samples than holders.
    """
    generator = numpy_generator(seed, "partition")
    classes, sizes = np.unique(labels, return_counts=True)
    where = f"partition.classes_per_client={classes_per_client} with clients.count={num_clients}"
    if not classes_per_client <= len(classes) <= classes_per_client * num_clients:
        raise InputError(
            f"{where}: the data have {len(classes)} classes; a client cannot hold more, "
            f"and all clients together cannot hold fewer"
        )
    holds = _even_holders(num_clients, len(classes), classes_per_client, generator)
    for label, size, needed in zip(classes, sizes, holds.sum(axis=0), strict=True):
        if size < needed:
            raise InputError(f"{where}: class {label} has {size} samples for {needed} holders")
    return share_by_weight(labels, holds, generator)


def _even_holders(
    num_clients: int, num_classes: int, classes_per_client: int, generator: np.random.Generator
) -> np.ndarray:
    """[N, C] bool: each client takes the classes with the fewest holders so far, ties at random."""
    holds = np.zeros((num_clients, num_classes), dtype=bool)
    for client in range(num_clients):
        order = np.lexsort((generator.random(num_classes), holds.sum(axis=0)))
        holds[client, order[:classes_per_client]] = True
    return holds
