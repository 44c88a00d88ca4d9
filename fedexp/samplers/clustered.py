"""Clustered sampling (Fraboni et al., ICML 2021): one draw from each of K groups."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import fcluster
from torch import Tensor

from fedexp.core.compatibility import DRAWS_BY_SIZE
from fedexp.core.randomness import numpy_generator
from fedexp.samplers.angles import angles_between
from fedexp.samplers.clusters import LinkageOn, ward_tree
from fedexp.samplers.last_updates import LastUpdates


def fill_urns(
    distances: np.ndarray, sizes: np.ndarray, num_urns: int, linkage_on: LinkageOn
) -> np.ndarray:
    """K urns of equal mass such that clients near to each other share one (Algorithm 2).

    A client with n_k > n / K fills whole urns by itself. What is left of all clients is clustered
    by Ward's method, the tree cut where no cluster weighs more than an urn holds. The heaviest
    clusters get an urn each; the others are poured into what room is left, heaviest first, from the
    emptiest urn on, so that they are torn apart as little as possible. (The released code
    pours the lightest first and a cluster's clients in random order.)

    Args:
        distances: [N, N] symmetric, zero on the diagonal.
        sizes: n_k [N] int64, positive.
        num_urns: K.
        linkage_on: what Ward's method is given, as in ``Clustered``.

    Returns:
        r [K, N] int64: a draw from urn j is client k with probability r_jk / n. Each row sums to
        n = sum_k n_k, column k to K n_k: so k is drawn K n_k / n times on average, exactly.
    """
    capacity = int(sizes.sum())
    whole, rest = np.divmod(num_urns * sizes, capacity)
    owners = np.repeat(np.arange(len(sizes)), whole)
    urns = np.zeros((num_urns, len(sizes)), dtype=np.int64)
    urns[np.arange(len(owners)), owners] = capacity
    shared = urns[len(owners) :]
    if not len(shared):
        return urns

    some = np.flatnonzero(rest)
    clusters = cut_by_mass(distances[np.ix_(some, some)], rest[some], capacity, linkage_on)
    clusters = sorted((some[c] for c in clusters), key=lambda c: (-rest[c].sum(), c[0]))
    for urn, cluster in zip(shared, clusters, strict=False):
        urn[cluster] = rest[cluster]
    others = np.concatenate([some[:0], *clusters[len(shared) :]])
    room = capacity - shared.sum(axis=1)
    shared[::-1, others] = pour(rest[others], room[::-1])
    return urns


def cut_by_mass(
    distances: np.ndarray, masses: np.ndarray, limit: int, linkage_on: LinkageOn
) -> list[np.ndarray]:
    """The largest clusters in the tree of Ward's method that weigh at most ``limit``.

    Args:
        distances: [N, N] symmetric, zero on the diagonal; N is at least 2.
        masses: [N] int64, none above ``limit``.
        limit: mass of a cluster at most.
        linkage_on: as in ``Clustered``.

    Returns:
        The members of each cluster, in order.
    """
    tree = ward_tree(distances, linkage_on)
    weights = masses.tolist()
    for merge in tree:
        weights.append(weights[int(merge[0])] + weights[int(merge[1])])
    tree[:, 2] = weights[len(masses) :]  # a cluster's height is its mass: that never falls upwards
    labels = fcluster(tree, limit, "distance")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def pour(masses: np.ndarray, room: np.ndarray) -> np.ndarray:
    """Fill ``room`` [K] with ``masses`` [N], one after another, both of the same sum.

    Returns:
        [K, N] int64: how much of each mass went where.
    """
    poured, filled = masses.cumsum(), room.cumsum()
    overlap = np.minimum.outer(filled, poured) - np.maximum.outer(filled - room, poured - masses)
    poured_into: np.ndarray = np.maximum(overlap, 0)
    return poured_into


def draw(urns: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """[K] one column of each of ``urns`` [K, N] int64, with odds proportional to its entries."""
    ends = urns.cumsum(axis=1)
    tickets = generator.integers(ends[:, -1])
    drawn: np.ndarray = (ends <= tickets[:, None]).sum(axis=1)
    return drawn


class Clustered(LastUpdates):
    """One client from each of K urns that are filled by how alike the clients' last updates are.

    A client can be drawn from several urns: it then stands in the cohort as often. The draws are
    unbiased, K n_k / n of client k on average, so that the cohort has to be averaged uniformly:
    use ``aggregator=uniform``. If fewer than K clients have data, there are as many draws as such
    clients, and they too are by mass: not all of them need take part.

    Clients are as far apart as the angle between their updates (arccos of the cosine). One that has
    not trained yet is at a right angle to every other, like clients that have nothing in common;
    so nobody is taken for alike in the first round. (In the released code it is at angle 0.)
    Memory: see ``LastUpdates``.

    Args:
        linkage_on: what Ward's method is given. ``condensed``: the angles themselves as the
            distances of points in space. ``rows``: the rows of the matrix of angles as the points,
            so that two clients are close that see all others alike; as in the released code.
    """

    traits = frozenset({DRAWS_BY_SIZE})

    def __init__(self, linkage_on: LinkageOn) -> None:
        self.linkage_on = linkage_on

    def between(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Angles."""
        return angles_between(rows, columns)

    def select(self, round: int) -> list[int]:
        """One draw from each urn, keyed by the round."""
        generator = numpy_generator(self.seed, "sampler", round)
        return sorted(self.eligible[draw(self.urns(), generator)].tolist())

    def urns(self) -> np.ndarray:
        """r [K, n] int64 over the n clients with data, as in ``fill_urns``."""
        return fill_urns(self.distances.numpy(), self.sizes, self.cohort_size, self.linkage_on)
