"""Clustered sampling by the clients' sizes (Fraboni et al., ICML 2021, Algorithm 1)."""

import numpy as np

from fedexp.config.compatibility.traits import DRAWS_BY_SIZE, DRAWS_REPEATEDLY
from fedexp.samplers.base import Sampler
from fedexp.samplers.clustered import draw, fill_in_order


def distributions_by_size(sizes: np.ndarray, num_draws: int) -> np.ndarray:
    """Find K distributions over the clients; each has clients of similar size (Algorithm 1).

    Client k has n_k samples, and all clients together have n samples. Client k gets K n_k units of
    probability, and each distribution has room for n units. The clients, largest first, fill one
    distribution after another. Among clients of equal size, the client with the lower number comes
    first.

    Args:
        sizes: n_k [N] int64, positive.
        num_draws: K.

    Returns:
        r [K, N] int64: draw j yields client k with probability r_jk / n. Each row sums to
        n = sum_k n_k, and column k sums to K n_k.
    """
    order = np.argsort(-sizes, kind="stable")
    distributions = np.zeros((num_draws, len(sizes)), dtype=np.int64)
    room = np.full(num_draws, sizes.sum())
    distributions[:, order] = fill_in_order(room, num_draws * sizes[order])
    return distributions


class ClusteredBySize(Sampler):
    """Draws a client from each of K distributions; clients of similar size share a distribution.

    The expected number of draws of client k is $K n_k / n$, where n_k is the number of samples of
    client k and n is the number of all samples. Large clients are therefore drawn more often, so
    average the cohort uniformly: ``aggregator=uniform``. A client that is drawn several times
    counts several times in the cohort. The number of draws of a client varies less than in K draws
    with replacement. Clients send only their weights.
    """

    takes_tokens = True
    traits = frozenset({DRAWS_BY_SIZE, DRAWS_REPEATEDLY})

    def select(self, round: int) -> list[int]:
        """Draw one client from each distribution over clients; seeded by the seed and the round."""
        distributions = distributions_by_size(self.sizes, self.cohort_size)
        generator = self.generator("sampler", round)
        return sorted(self.eligible[draw(distributions, generator)].tolist())
