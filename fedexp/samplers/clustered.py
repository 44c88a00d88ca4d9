"""Clustered sampling (Fraboni et al., ICML 2021): one draw from each of K groups."""

from __future__ import annotations

import numpy as np
from scipy.cluster.hierarchy import fcluster
from torch import Tensor

from fedexp.compatibility.traits import DRAWS_BY_SIZE, DRAWS_REPEATEDLY
from fedexp.core.randomness import numpy_generator
from fedexp.samplers.angles import angles_between
from fedexp.samplers.clusters import LinkageOn, ward_tree
from fedexp.samplers.last_updates import LastUpdates


def sampling_distributions(
    distances: np.ndarray, sizes: np.ndarray, num_draws: int, linkage_on: LinkageOn
) -> np.ndarray:
    """K distributions over the clients such that similar clients share one (Algorithm 2).

    Client k has K n_k units to distribute, and each distribution holds n. A client with n_k > n / K
    first fills whole distributions alone. The remaining units of all clients are clustered by
    Ward's method; the tree is cut into the largest clusters of at most n units. Each of the largest
    clusters gets a distribution; the clients of the others fill the rest, largest cluster first,
    from the distribution with the most room on, so that few clusters are split. (The released code
    takes the smallest cluster first and the clients of a cluster in random order.)

    Args:
        distances: [N, N] symmetric, zero on the diagonal.
        sizes: n_k [N] int64, positive.
        num_draws: K.
        linkage_on: what Ward's method is given, as in ``Clustered``.

    Returns:
        r [K, N] int64: draw j is client k with probability r_jk / n. Each row sums to
        n = sum_k n_k, column k to K n_k: so k is drawn K n_k / n times on average, exactly.
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
        units: [N] int64, none above ``limit``.
        limit: of the sum over a cluster.
        linkage_on: as in ``Clustered``.

    Returns:
        The members of each cluster, in order.
    """
    tree = ward_tree(distances, linkage_on)
    sums = units.tolist()
    for merge in tree:
        sums.append(sums[int(merge[0])] + sums[int(merge[1])])
    # With its sum as a cluster's height, which never falls from a cluster to its parent, fcluster
    # cuts the tree by sums.
    tree[:, 2] = sums[len(units) :]
    labels = fcluster(tree, limit, "distance")
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def fill_in_order(room: np.ndarray, units: np.ndarray) -> np.ndarray:
    """Assign ``units`` [N] one after another to K places with ``room`` [K]; the sums are equal.

    Returns:
        [K, N] int64: how many of each client's units are at each place.
    """
    filled, assigned = room.cumsum(), units.cumsum()
    overlap = np.minimum.outer(filled, assigned) - np.maximum.outer(filled - room, assigned - units)
    amounts: np.ndarray = np.maximum(overlap, 0)
    return amounts


def draw(distributions: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """[K] one column for each row of [K, N] int64, with odds proportional to the row's entries."""
    ends = distributions.cumsum(axis=1)
    tickets = generator.integers(ends[:, -1])
    drawn: np.ndarray = (ends <= tickets[:, None]).sum(axis=1)
    return drawn


class Clustered(LastUpdates):
    """One client from each of K distributions in which clients with similar updates are together.

    A client can be drawn several times; it then stands in the cohort as often. The draws are
    unbiased, K n_k / n of client k on average, so that the cohort has to be averaged uniformly:
    use ``aggregator=uniform``. If fewer than K clients have data, there are as many draws as such
    clients, with the same odds: not all of them need take part.

    The distance of two clients is the angle between their updates (arccos of the cosine). A client
    that has not trained yet is at a right angle to every other, so that no clients count as similar
    in the first round. (In the released code it is at angle 0.) Memory: see ``LastUpdates``.

    Args:
        linkage_on: what Ward's method is given. ``condensed``: the angles as the distances of the
            points. ``rows``: the rows of the matrix of angles as the coordinates of the points, so
            that two clients are close if their angles to all others are similar; as in the released
            code.
    """

    traits = frozenset({DRAWS_BY_SIZE, DRAWS_REPEATEDLY})

    def __init__(self, linkage_on: LinkageOn) -> None:
        self.linkage_on = linkage_on

    def distance(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The angle."""
        return angles_between(rows, columns)

    def select(self, round: int) -> list[int]:
        """One draw from each distribution, keyed by the round."""
        generator = numpy_generator(self.seed, "sampler", round)
        return sorted(self.eligible[draw(self.distributions(), generator)].tolist())

    def distributions(self) -> np.ndarray:
        """r [K, n] int64 over the n clients with data, as in ``sampling_distributions``."""
        distances = self.distances.numpy()
        return sampling_distributions(distances, self.sizes, self.cohort_size, self.linkage_on)
