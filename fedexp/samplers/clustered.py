"""Clustered sampling (Fraboni et al., ICML 2021): one client from each of K groups."""

from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeInt
from scipy.cluster.hierarchy import fcluster
from torch import Tensor

from fedexp.config.compatibility.traits import DRAWS_BY_SIZE, DRAWS_REPEATEDLY
from fedexp.samplers.base import COMPARES_STEPS
from fedexp.samplers.clusters import LinkageOn, ward_tree
from fedexp.samplers.heterogeneity import angles_between
from fedexp.samplers.last_updates import LastUpdates


def sampling_distributions(
    distances: np.ndarray, sizes: np.ndarray, num_draws: int, linkage_on: LinkageOn
) -> np.ndarray:
    """Find K distributions over the clients; similar clients share a distribution (Algorithm 2).

    Client k has n_k samples, and all clients together have n samples. Client k gets K n_k units of
    probability, and each distribution has room for n units. A client with n_k >= n / K first fills
    whole distributions alone. Ward's method then clusters the clients. Its tree is cut into the
    largest clusters whose remaining units sum to at most n. The largest of these clusters get one
    distribution each. The clients of the other clusters fill the remaining room: the largest
    cluster first, and the distribution with the most room first. In this order few clusters are
    divided between distributions. (The released code starts with the smallest cluster, and puts the
    clients of a cluster in random order.)

    Args:
        distances: [N, N] symmetric, zero on the diagonal.
        sizes: n_k [N] int64, positive.
        num_draws: K.
        linkage_on: the input of Ward's method, see ``Clustered``.

    Returns:
        r [K, N] int64: draw j yields client k with probability r_jk / n. Each row sums to
        n = sum_k n_k, and column k sums to K n_k. So client k is drawn K n_k / n times on average.
    """
    total = int(sizes.sum())
    whole, rest = np.divmod(num_draws * sizes, total)
    alone = np.repeat(np.arange(len(sizes)), whole)
    distributions = np.zeros((num_draws, len(sizes)), dtype=np.int64)
    distributions[np.arange(len(alone)), alone] = total
    shared = distributions[len(alone) :]
    if not len(shared):
        return distributions

    some = np.flatnonzero(rest)
    clusters = bounded_clusters(distances[np.ix_(some, some)], rest[some], total, linkage_on)
    clusters = sorted((some[c] for c in clusters), key=lambda c: (-rest[c].sum(), c[0]))
    for row, cluster in zip(shared, clusters, strict=False):
        row[cluster] = rest[cluster]
    others = np.concatenate([some[:0], *clusters[len(shared) :]])
    room = total - shared.sum(axis=1)
    shared[::-1, others] = fill_in_order(room[::-1], rest[others])
    return distributions


def bounded_clusters(
    distances: np.ndarray, units: np.ndarray, limit: int, linkage_on: LinkageOn
) -> list[np.ndarray]:
    """The largest clusters in the tree of Ward's method whose ``units`` sum to at most ``limit``.

    Args:
        distances: [N, N] symmetric, zero on the diagonal; N is at least 2.
        units: [N] int64, each at most ``limit``.
        limit: the largest sum of ``units`` in a cluster.
        linkage_on: the input of Ward's method, see ``Clustered``.

    Returns:
        A list of clusters. Each cluster is an array of its points' indices, in increasing order.
    """
    tree = ward_tree(distances, linkage_on)
    sums = units.tolist()
    for merge in tree:
        sums.append(sums[int(merge[0])] + sums[int(merge[1])])
    # fcluster cuts a tree by the heights of its nodes, which must grow towards the root. The sums
    # of units also grow towards the root, so they can replace the heights.
    tree[:, 2] = sums[len(units) :]
    labels = fcluster(tree, limit, "distance")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def fill_in_order(room: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Fill K places, one after another, with the units of N clients, one client after another.

    Args:
        room: [K] number of units that fit into each place.
        units: [N] number of units of each client; their sum equals the sum of ``room``.

    Returns:
        [K, N] int64: how many units of each client are at each place.
    """
    filled, assigned = room.cumsum(), units.cumsum()
    overlap = np.minimum.outer(filled, assigned) - np.maximum.outer(filled - room, assigned - units)
    amounts: np.ndarray = np.maximum(overlap, 0)
    return amounts


def draw(distributions: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw one client from each of K distributions over N clients.

    Args:
        distributions: [K, N] int64. The odds in a row are proportional to the entries of the row.
        generator: makes the random draws.

    Returns:
        [K] indices of the drawn clients.
    """
    ends = distributions.cumsum(axis=1)
    tickets = generator.integers(ends[:, -1])
    drawn: np.ndarray = (ends <= tickets[:, None]).sum(axis=1)
    return drawn


class Clustered(LastUpdates):
    """Draws one client from each of K distributions; similar clients share a distribution.

    A client that is drawn several times counts several times in the cohort. The expected number of
    draws of client k is $K n_k / n$, where n_k is the number of samples of client k and n is the
    number of all samples. Clients with many samples are therefore drawn more often, so average the
    cohort uniformly: ``aggregator=uniform``. If fewer than K clients have data, there are only as
    many draws as clients with data. Some clients may then be drawn twice and others never.

    The distance of two clients is the angle between their updates (arccos of the cosine).
    ``LastUpdates`` says how much memory the stored updates take.

    Args:
        linkage_on: the input of Ward's method. With ``condensed`` the angles are the distances of
            the points. With ``rows`` (released code) the rows of the matrix of angles are the
            coordinates of the points. Two clients are then close if their angles to all other
            clients are similar.
        untrained: the angle between a client that has not trained yet and every other client. With
            ``right`` this is a right angle, so that in the first round no two clients are similar.
            With ``zero`` (released code) the angle is 0, so that an untrained client is similar to
            every client.
        rounds_by_size: number of rounds at the start in which each draw is among all clients, with
            odds proportional to n_k. HiCS-FL's copy of this sampler has 10 such rounds.
    """

    traits = frozenset({DRAWS_BY_SIZE, DRAWS_REPEATEDLY})

    discourages = COMPARES_STEPS

    def __init__(
        self,
        linkage_on: LinkageOn,
        untrained: Literal["right", "zero"],
        rounds_by_size: NonNegativeInt,
    ) -> None:
        self.linkage_on, self.untrained = linkage_on, untrained
        self.rounds_by_size = rounds_by_size

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The angles [n, m] between n updates ``rows`` and m updates ``columns``."""
        angles = angles_between(rows, columns)
        if self.untrained == "right":
            return angles
        trained = rows.any(dim=1).unsqueeze(1) & columns.any(dim=1)
        return torch.where(trained, angles, 0.0)

    def select(self, round: int) -> list[int]:
        """Draw one client from each of ``distributions``; seeded by the seed and the round."""
        generator = self.generator("sampler", round)
        return sorted(self.eligible[draw(self.distributions(round), generator)].tolist())

    def distributions(self, round: int) -> np.ndarray:
        """The distributions for the K draws of a round, over the n available clients: [K, n] int64.

        ``sampling_distributions`` explains the entries.
        """
        if round <= self.rounds_by_size:
            return np.tile(self.sizes, (self.cohort_size, 1))
        distances = self.distances_now.numpy()
        return sampling_distributions(distances, self.sizes, self.cohort_size, self.linkage_on)
