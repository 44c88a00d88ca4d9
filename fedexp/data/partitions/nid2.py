"""FedSC's second partition: biased clients and one client with all classes."""

from typing import Literal

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.data.split import share
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
    classes, biased = np.unique(labels), num_clients - 1
    slot = np.arange(max(len(classes), biased))
    weights = np.zeros((num_clients, classes.max() + 1), dtype=np.int64)
    weights[slot % biased, generator.permutation(classes)[slot % len(classes)]] = 1
    if sharing == "even":
        weights[-1, classes] = 1
    else:  # share with h biased clients: h / (h + h (N - 1)) = 1/N
        weights[-1] = weights.sum(axis=0)
        weights[:-1] *= biased
    return share(labels, weights, generator)
