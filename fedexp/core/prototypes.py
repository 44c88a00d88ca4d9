"""Class prototypes, and FedSC's server-side computations with them (KDD 2025): pure functions.

K is the number of clients in the cohort, C the number of classes, d the width of the features. A
client holds a class if it has samples of it; c_kj is client k's prototype of class j.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.messages import PartUpdate

Metric = Literal["angle", "cosine", "l1", "l2", "kl"]
"""Distances between two clients' prototypes of a class, see ``relational_prototypes``."""


def class_prototypes(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mean feature of each class.

    Args:
        features: [n, d].
        labels: [n] integers in 0..C-1.
        num_classes: C.

    Returns:
        prototypes [C, d] in the dtype of ``features``, zero for classes without samples;
        counts [C] int64, the samples of each class.
    """
    members = F.one_hot(labels.long(), num_classes)
    counts = members.sum(dim=0)
    sums = members.to(features.dtype).T @ features
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def stack_reports(updates: Sequence[PartUpdate]) -> tuple[Tensor, Tensor]:
    """The class prototypes and counts that a cohort reported.

    A client that the sampler drew twice counts once, though it counts twice in the mean of weights.

    Args:
        updates: K updates with ``prototypes`` [C, d] and ``counts`` [C].

    Returns:
        prototypes [K, C, d]; counts [K, C].
    """
    prototypes = torch.stack([update.extras["prototypes"] for update in updates])
    return prototypes, torch.stack([update.extras["counts"] for update in updates])


def relational_prototypes(
    prototypes: Tensor, counts: Tensor, neighbors: int = 2, *, metric: Metric = "angle"
) -> tuple[Tensor, Tensor]:
    """Average each client's prototype with the nearest prototypes of others (FedSC Eq. 5-9).

    For each client k and each class j that it holds, the result r_kj is the mean of c_kj and the M
    nearest c_qj of other clients q that hold j. M = min(neighbors, number of these clients). Of
    equally near clients the one with the smaller number comes first.

    Args:
        prototypes: c [K, C, d]; rows of classes that a client does not hold are ignored.
        counts: [K, C] samples of each class at each client.
        neighbors: upper bound of M.
        metric: the distance between c_kj and c_qj (Table 5). ``angle``: |phi_kj - phi_qj|, where
            phi_kj is the cosine of c_kj with g_j, the mean of class j's prototypes (Eq. 5, 7, 8).
            ``cosine``: 1 - cos(c_kj, c_qj). ``l1``: the sum of absolute differences. ``l2``: the
            Euclidean distance. ``kl``: KL(p_k || p_q) with p_k = softmax(c_kj) over the d
            dimensions, in float64 (the paper gives no formula for it). A zero vector has cosine 0
            with every vector.

    Returns:
        relational: r [K, C, d], zero where ``holds`` is false; holds [K, C] bool: whether client k
        holds class j.
    """
    holds = counts > 0
    held = holds.T  # [C, K]
    by_class = prototypes.masked_fill(~holds.unsqueeze(-1), 0).transpose(0, 1)  # [C, K, d]
    distance = _pairwise(by_class, held, metric).masked_fill(~held.unsqueeze(1), torch.inf)
    distance.diagonal(dim1=1, dim2=2).fill_(-1)  # each client's own prototype comes first
    nearest = distance.argsort(dim=2, stable=True)[:, :, : neighbors + 1]
    chosen = torch.zeros_like(distance, dtype=prototypes.dtype).scatter(2, nearest, 1.0)
    chosen = chosen * (held.unsqueeze(1) & held.unsqueeze(2))
    shares = chosen / chosen.sum(dim=2, keepdim=True).clamp(min=1)
    return (shares @ by_class).transpose(0, 1), holds


def discrepancy_weights(counts: Tensor) -> Tensor:
    """The weight of each client's prototypes: larger with many samples and balanced classes.

    p_k(j) is the share of class j at client k. The client's discrepancy from balance is
    d_k = sqrt(1/2 sum_j (p_k(j) - 1/C)^2) (FedSC Eq. 10). The client's weight e_k is proportional
    to sigmoid(n_k / sum n - d_k / sum d) (Eq. 11), where n_k is its number of samples and the sums
    are over the clients. If every client is balanced, d_k / sum d is 0.

    Args:
        counts: [K, C] samples of each class at each client.

    Returns:
        e [K] float64, positive, sums to 1.
    """
    counts = counts.double()
    sizes = counts.sum(dim=1)
    shares = counts / sizes.clamp(min=1).unsqueeze(1)
    discrepancy = (0.5 * (shares - 1 / counts.shape[1]).square().sum(dim=1)).sqrt()
    weights = torch.sigmoid(_share(sizes) - _share(discrepancy))
    return weights / weights.sum()


def consistent_prototypes(relational: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """One prototype for each class: o_j = sum_k e_k r_kj (FedSC Eq. 12).

    The sum is over the clients that hold class j. The weights e_k are ``discrepancy_weights``,
    normalised to sum 1 over these clients. The paper normalises e_k over all clients, and does not
    say what r_kj is at a client without class j.

    Args:
        relational: r [K, C, d].
        counts: [K, C] samples of each class at each client.

    Returns:
        consistent: o [C, d], zero where ``holds`` is false; holds [C] bool: whether any client
        holds the class.
    """
    holds = counts > 0
    weights = _share(discrepancy_weights(counts).unsqueeze(1) * holds)
    return torch.einsum("kc,kcd->cd", weights.to(relational.dtype), relational), holds.any(dim=0)


def _pairwise(vectors: Tensor, held: Tensor, metric: Metric) -> Tensor:
    """Distances [C, K, K] between the prototypes of K clients, for each of C classes.

    ``vectors`` [C, K, d] are the prototypes, and ``held`` [C, K] says whether a client holds a
    class. If a client does not hold a class, its vector for the class is zero.
    """
    if metric == "angle":
        center = vectors.sum(dim=1) / held.sum(dim=1, keepdim=True).clamp(min=1)
        phi = F.cosine_similarity(vectors, center.unsqueeze(1), dim=2)
        return (phi.unsqueeze(2) - phi.unsqueeze(1)).abs()
    if metric == "cosine":
        unit = F.normalize(vectors, dim=2)
        return 1 - unit @ unit.transpose(1, 2)
    if metric == "kl":
        return _divergence(vectors)
    # Without a matrix product: its rounding error can exceed the distance of close vectors.
    p = 1.0 if metric == "l1" else 2.0
    return torch.cdist(vectors, vectors, p, compute_mode="donot_use_mm_for_euclid_dist")


def _divergence(vectors: Tensor) -> Tensor:
    """Kullback-Leibler divergences [C, K, K] between K clients' prototypes, for each of C classes.

    Entry [c, k, q] is KL(p_k || p_q). p is the softmax of ``vectors`` [C, K, d] over d.
    """
    logs = F.log_softmax(vectors.double(), dim=2)
    # One client at a time: all pairs at once would need a tensor [C, K, K, d].
    own = logs.unsqueeze(2).unbind(dim=1)  # K times log p_k [C, 1, d]
    return torch.stack([(p.exp() * (p - logs)).sum(dim=2) for p in own], dim=1)


def _share(values: Tensor) -> Tensor:
    """Divide ``values`` [K, ...] by their sum over the K clients; zero where the sum is zero."""
    total = values.sum(dim=0)
    return values / total.masked_fill(total == 0, 1)
