"""Deal samples by class, for partitions, test splits, validation splits and subsets."""

from collections.abc import Sequence

import numpy as np

from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.rounding import rounded_down


def share(
    labels: np.ndarray, weights: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """Split the samples of each class over the clients in proportion to ``weights``.

    Args:
        labels: [n] class of each sample.
        weights: [N, C] weight of each client for each class. If all weights of a class are 0, its
            samples go to no client.
        generator: breaks ties in rounding to whole samples, and draws the samples.

    Returns:
        For each client, its sorted indices into ``labels``.
    """
    sizes = np.bincount(labels, minlength=weights.shape[1])
    counts = np.zeros(weights.shape, dtype=np.int64)
    for label in np.flatnonzero(weights.sum(axis=0)):
        counts[:, label] = apportion(sizes[label], weights[:, label], generator)
    return deal(labels, counts, generator)


def hold_out(
    labels: np.ndarray, clients: Sequence[np.ndarray], fraction: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Hold out a share of each client's samples for validation.

    Client k holds out floor(fraction * n_k) of its n_k samples, in proportion to its class counts,
    rounded by largest remainder. At least one sample of every class stays for training, so a client
    with few samples of each class holds out fewer samples.

    Args:
        labels: [n] class of each sample.
        clients: N sorted index arrays into ``labels``.
        fraction: share of each client's samples, at least 0 and below 1.
        seed: seed of the draws; a client's draw does not depend on the other clients.

    Returns:
        For each client, the sorted indices of its training samples and of its held-out samples.
    """
    train, validation = [], []
    for client, index in enumerate(clients):
        held = np.empty(0, dtype=np.int64)
        if wanted := rounded_down(fraction, len(index)):
            generator = numpy_generator(seed, "validation", client)
            counts = np.bincount(labels[index])
            share = np.minimum(apportion(wanted, counts, generator), counts - 1).clip(0)
            held = deal(labels[index], share[None, :], generator)[0]
        train.append(np.delete(index, held))
        validation.append(index[held])
    return train, validation


def class_counts(labels: np.ndarray, clients: Sequence[np.ndarray], num_classes: int) -> np.ndarray:
    """[N, C] int64: number of samples of each class at each client.

    Args:
        labels: [n] class of each sample.
        clients: N index arrays into ``labels``.
        num_classes: C.
    """
    return np.stack([np.bincount(labels[index], minlength=num_classes) for index in clients])


def stratified(labels: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Draw ``size`` of n samples, stratified by ``labels`` [n]; return their sorted indices.

    Class sizes are rounded by largest remainder; every class keeps at least one sample.

    Raises:
        InputError: ``size`` exceeds n or is smaller than the number of classes.
    """
    sizes = np.bincount(labels)
    num_classes = np.count_nonzero(sizes)
    if not num_classes <= size <= len(labels):
        raise InputError(
            f"data.subset={size}: must be between {num_classes} (one sample per class) "
            f"and {len(labels)} (the whole training split)"
        )
    generator = numpy_generator(seed, "subset")
    counts = apportion_to_all(size, sizes, generator)
    return deal(labels, counts[None, :], generator)[0]


def apportion(total: int, weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Split an integer in proportion to weights by largest remainder, ties broken at random.

    Args:
        total: the integer.
        weights: [N] non-negative, not all zero, on any scale.
        generator: breaks the ties.

    Returns:
        [N] int64 with sum ``total``; each number differs from its exact share by less than 1.
    """
    exact = total * weights / weights.sum()
    counts: np.ndarray = np.floor(exact).astype(np.int64)
    by_remainder = np.lexsort((generator.random(len(weights)), counts - exact))
    counts[by_remainder[: total - counts.sum()]] += 1
    return counts


def apportion_to_all(total: int, weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Split an integer as ``apportion`` does, but give every positive weight at least one.

    If such a weight has the share 0, the share becomes 1 and the largest share loses 1. ``total``
    must be at least the number of positive weights.
    """
    counts = apportion(total, weights, generator)
    for number in np.flatnonzero((counts == 0) & (weights > 0)):
        counts[number] += 1
        counts[counts.argmax()] -= 1
    return counts


def deal(
    labels: np.ndarray, counts: np.ndarray, generator: np.random.Generator
) -> list[np.ndarray]:
    """Deal random samples to the clients: of each class, as many as ``counts`` says.

    Args:
        labels: [n] class of each sample.
        counts: [N, C] samples of each class for each client; a column's sum is at most the size of
            the class. Samples beyond this sum go to no client.
        generator: draws the samples.

    Returns:
        For each client, its sorted indices into ``labels``.
    """
    return deal_in_order(labels, counts, generator.permutation(len(labels)))


def deal_in_order(labels: np.ndarray, counts: np.ndarray, order: np.ndarray) -> list[np.ndarray]:
    """Deal the samples of each class to the clients in a given order.

    Client 0 gets the first ``counts[0, c]`` samples of class c, client 1 the next
    ``counts[1, c]``, and so on. Samples beyond the counts go to no client.

    Args:
        labels: [n] class of each sample.
        counts: [N, C] samples of each class for each client.
        order: [n] the samples in the order of dealing.

    Returns:
        For each client, its sorted indices into ``labels``.
    """
    num_clients, num_classes = counts.shape
    left_over = np.bincount(labels, minlength=num_classes) - counts.sum(axis=0)
    counts = np.vstack([counts, left_over])
    by_class = order[np.argsort(labels[order], kind="stable")]
    owner = np.empty(len(labels), dtype=np.int64)
    owner[by_class] = np.repeat(np.tile(np.arange(num_clients + 1), num_classes), counts.T.ravel())
    return by_owner(owner, num_clients)


def by_owner(owner: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """List the samples of each client, given the client of each sample.

    Args:
        owner: [n] number of each sample's client; ``num_clients`` means no client.
        num_clients: N.

    Returns:
        For each client, the sorted int64 indices of its samples.
    """
    sizes = np.bincount(owner, minlength=num_clients + 1)
    index = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(index, np.cumsum(sizes)[:-1])[:num_clients]
