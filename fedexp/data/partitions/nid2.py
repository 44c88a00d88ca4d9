"""FedSC's second partition: biased clients and one client with all classes."""

from typing import Literal

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.data.partitions.shares import share_by_weight
from fedexp.errors import InputError


def nid2(
    labels: np.ndarray,
    num_clients: int,
    seed: int,
    sharing: Literal["even", "equal_sizes"] = "even",
) -> list[np.ndarray]:
    """Biased clients that split the classes among them, and one last client that has them all.

    FedSC's NID2 is 5 biased clients with C/5 classes each and 1 client with all classes.
    Generalised here to any N: the N - 1 biased clients have the same number of classes or one more,
    disjoint while there are enough classes; with more biased clients than classes each has one.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        seed: decides the classes and samples of each client.
        sharing: ``even``, all clients that have a class get as much of it, so that the last client
            is the largest; ``equal_sizes``, the last client gets 1/N of each class and the biased
            ones share the rest, so that all have n/N samples if each has as many classes
            (FedDisco's NID2, which FedSC takes over).

    Raises:
        InputError: there are fewer than two clients.
    """
    if num_clients < 2:
        raise InputError(f"clients.count={num_clients}: partition=nid2 needs at least 2")
    generator = numpy_generator(seed, "partition")
    num_classes, biased = len(np.unique(labels)), num_clients - 1
    slot = np.arange(max(num_classes, biased))
    holds = np.zeros((num_clients, num_classes), dtype=bool)
    holds[slot % biased, generator.permutation(num_classes)[slot % num_classes]] = True
    holds[-1] = True
    if sharing == "even":
        return share_by_weight(labels, holds, generator)
    weights = holds * biased
    weights[-1] = holds[:-1].sum(axis=0)  # its share is h / (h + h (N - 1)) = 1/N, of h holders
    return share_by_weight(labels, weights, generator)
