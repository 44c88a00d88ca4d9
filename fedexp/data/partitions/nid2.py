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
    """Give the last client all classes; divide the classes among the others, the biased clients.

    FedSC's NID2 has 5 biased clients with C/5 classes each and 1 client with all classes. Here N
    can be any number above 1: the N - 1 biased clients have disjoint classes, and their numbers of
    classes differ by at most one. If there are more biased clients than classes, each has one
    class, and some classes have several biased clients.

    Args:
        labels: [n] class of each sample.
        num_clients: N.
        seed: seed of the choice of each client's classes and samples.
        sharing: the rule for the samples of a class. ``even`` gives equally many samples to all
            clients with the class, so the last client is the largest. ``equal_sizes`` gives 1/N of
            each class to the last client, and the rest to the biased clients with the class. All
            clients then have n/N samples if all classes have the same size and the biased clients
            have equally many classes (as in FedDisco's partition; FedSC gives no sizes).

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
    weights[-1] = holds[:-1].sum(axis=0)  # share with h biased clients: h / (h + h (N - 1)) = 1/N
    return share_by_weight(labels, weights, generator)
