"""HiCS-FL's formulas: label entropies, distances of clients, and a cohort drawn from clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.cosines import cosines

Scale = Literal["fixed", "client"]


def estimated_entropy(bias_updates: Tensor, temperature: float, scale: Scale = "fixed") -> Tensor:
    """Estimate the label entropy H_k of each client from its update of the output layer's bias.

    The update is called delta_b_k. The estimate is H_k = entropy(softmax(delta_b_k / temperature))
    in nats (HiCS-FL Eq. 7).

    Args:
        bias_updates: delta_b [N, C].
        temperature: positive; a smaller temperature gives lower estimates.
        scale: with ``fixed`` delta_b_k is used as in the paper. With ``client`` each delta_b_k is
            first divided by its norm, so that the estimate depends only on the direction of
            delta_b_k. A zero delta_b_k stays zero, and its entropy is ln C.

    Returns:
        The estimates H_k, [N] float64, from 0 to ln C.
    """
    updates = bias_updates.to(torch.float64)
    if scale == "client":
        updates = F.normalize(updates, dim=1)
    return _entropy(torch.softmax(updates / temperature, dim=1))


def label_entropy(class_counts: Tensor) -> Tensor:
    """The entropy in nats of each client's labels, [N] float64, for class counts [N, C]."""
    counts = class_counts.to(torch.float64)
    return _entropy(counts / counts.sum(dim=1, keepdim=True).clamp(min=1))


@dataclass(frozen=True)
class Profiles:
    """The estimated entropies and the updates of n clients, by which HiCS-FL compares them.

    Attributes:
        entropies: [n] float64 estimated label entropies H.
        updates: [n, D] the vectors whose angles are compared. In the paper they are delta_b, the
            updates of the output layer's bias.
    """

    entropies: Tensor
    updates: Tensor

    def __len__(self) -> int:
        return len(self.entropies)

    def __getitem__(self, index: Tensor | slice) -> Profiles:
        return Profiles(self.entropies[index], self.updates[index])


def angles_between(rows: Tensor, columns: Tensor) -> Tensor:
    """The angles [N, M] between the vectors ``rows`` [N, D] and the vectors ``columns`` [M, D].

    Angles are in radians from 0 to pi, float64. A zero vector has a right angle with every vector,
    even with another zero vector.
    """
    return cosines(rows, columns).acos_()


def distances_between(rows: Profiles, columns: Profiles, lam: float) -> Tensor:
    """The distance of each client in ``rows`` from each client in ``columns`` (HiCS-FL Eq. 9).

    The distance of clients u and k is lam * angle + (1 - lam) * |H_u - H_k|. The angle is the angle
    between their updates, and H is their estimated entropy.

    Returns:
        [n, m] float64, for n clients in ``rows`` and m clients in ``columns``.
    """
    gaps = (rows.entropies.unsqueeze(1) - columns.entropies).abs_()
    return angles_between(rows.updates, columns.updates).mul_(lam).add_(gaps, alpha=1 - lam)


def distances_within(profiles: Profiles, lam: float) -> Tensor:
    """The distances [n, n] between n clients, exactly symmetric and zero on the diagonal."""
    distances = distances_between(profiles, profiles, lam)
    return ((distances + distances.T) / 2).fill_diagonal_(0)


def cluster_means(entropies: Tensor, clusters: Tensor) -> Tensor:
    """The mean entropy of each of M clusters, [M] float64.

    Args:
        entropies: [N] entropy of each client.
        clusters: [N] cluster of each client, 0 to M-1.
    """
    means: Tensor = clusters.bincount(entropies.to(torch.float64)) / clusters.bincount()
    return means


def by_mean_entropy(entropies: Tensor, clusters: Tensor) -> Tensor:
    """Renumber the clusters by their mean entropy, lowest first.

    Args:
        entropies: [N] entropy of each client.
        clusters: [N] cluster of each client, 0 to M-1.

    Returns:
        [N] int64, the new number of each client's cluster, 0 to M-1.
    """
    ranks = cluster_means(entropies, clusters).argsort(stable=True).argsort()
    return ranks[clusters]


def draw_cohort(
    entropies: Tensor,
    clusters: Tensor,
    sizes: Tensor,
    gamma: float,
    cohort_size: int,
    generator: np.random.Generator,
) -> list[int]:
    """Draw K different clients. Each draw chooses a cluster, then a client of this cluster.

    The probability of cluster m is proportional to exp(gamma * mean H in cluster m) (HiCS-FL Eq.
    10), where H are the label entropies. Within a cluster the odds of client k are proportional to
    its number n_k of samples. A cluster whose clients have all been drawn is not drawn again.
    The loop of the paper's Algorithm 1 may draw a client again, which does not count. So there a
    cluster loses probability with each client that it gives; here, as in the released code, not.

    Args:
        entropies: [N] label entropies H.
        clusters: [N] int64 labels 0 to M-1. Each cluster has at least one client.
        sizes: n_k [N], positive.
        gamma: preference for high entropy. With 0 all clusters have the same probability.
        cohort_size: K, at most N.
        generator: makes the random draws.

    Returns:
        The indices of the K drawn clients, in the order of the draws.
    """
    # Give each client a random key from the exponential distribution with rate n_k. The order of
    # the keys is the order of draws without replacement with odds proportional to n_k.
    keys = generator.exponential(size=len(sizes)) / sizes.numpy()
    first = _smallest(keys, clusters.numpy(), cohort_size)
    queue = first[np.lexsort((keys[first], clusters.numpy()[first]))]
    left = np.bincount(clusters.numpy()[first])
    ends = left.cumsum()
    means = cluster_means(entropies, clusters)
    cohort = []
    for _ in range(cohort_size):
        available = np.flatnonzero(left)
        odds = torch.softmax(gamma * means[torch.from_numpy(available)], dim=0).numpy()
        cluster = generator.choice(available, p=odds)
        cohort.append(int(queue[ends[cluster] - left[cluster]]))
        left[cluster] -= 1
    return cohort


def spearman(first: Tensor, second: Tensor) -> float | None:
    """Spearman's rank correlation of two tensors [N].

    The result is None if one of the tensors is constant, is empty or contains NaN.
    """
    for values in (first, second):
        if not len(values) or values.isnan().any() or values.min() == values.max():
            return None
    from scipy.stats import spearmanr

    return float(spearmanr(first.cpu().numpy(), second.cpu().numpy()).statistic)


def _smallest(keys: np.ndarray, clusters: np.ndarray, most: int) -> np.ndarray:
    """The positions in ``keys`` [N] of the ``most`` smallest keys of each cluster.

    Only these keys are sorted later, which saves time in a large population. ``clusters`` [N] has
    the cluster of each key, 0, 1, ... up to the number of clusters minus 1.
    """
    # numpy sorts 16-bit integers in linear time.
    small = clusters.astype(np.uint16) if clusters.max() < 2**16 else clusters
    members = np.split(np.argsort(small, kind="stable"), np.bincount(clusters).cumsum()[:-1])
    return np.concatenate(
        [
            each[np.argpartition(keys[each], most - 1)[:most]] if len(each) > most else each
            for each in members
        ]
    )


def _entropy(shares: Tensor) -> Tensor:
    """The entropy [N] in nats of each row of ``shares`` [N, C]; a share of 0 adds nothing."""
    entropies: Tensor = torch.special.entr(shares).sum(dim=1)
    return entropies
