"""Class prototypes, and FedSC's server-side functions of them (KDD 2025): pure functions.

K is the number of clients in the cohort, C of classes, d the width of the features. A client holds
a class if it has samples of it; c_kj is client k's prototype of class j.
"""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.messages import Update

Metric = Literal["angle", "cosine", "l1", "l2", "kl"]
"""Distances of two clients' prototypes of one class: see ``relational_prototypes``."""


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


def stack_reports(updates: Sequence[Update], socket: str) -> tuple[Tensor, Tensor]:
    """The class prototypes and counts that a cohort reported, in the order of the clients' numbers.

    In that order, so that sums over clients do not depend on the order in which updates arrive.

    Args:
        updates: K of them, each with ``prototypes`` [C, d] and ``counts`` [C] of this socket.
        socket: whose part reported them: ``head``, ``loss``.

    Returns:
        prototypes [K, C, d]; counts [K, C].
    """
    reports = [update.extras[socket] for update in sorted(updates, key=lambda each: each.client)]
    prototypes = torch.stack([report["prototypes"] for report in reports])
    return prototypes, torch.stack([report["counts"] for report in reports])


def relational_prototypes(
    prototypes: Tensor, counts: Tensor, neighbors: int = 2, *, metric: Metric = "angle"
) -> tuple[Tensor, Tensor]:
    """Each client's prototype averaged with the nearest ones of other clients (FedSC Eq. 5-9).

    r_kj is the mean of c_kj and of c_qj over the M nearest other holders q of class j,
    M = min(neighbors, holders - 1). Equally near holders are taken in the order of k.

    Args:
        prototypes: c [K, C, d]; the rows of classes that a client does not hold are ignored.
        counts: [K, C] samples of each class at each client.
        neighbors: the largest M.
        metric: the distance of c_kj and c_qj (Table 5). ``angle``: |phi_kj - phi_qj|, where phi_kj
            is the cosine of c_kj with g_j, the mean of class j's prototypes (Eq. 5, 7, 8). The
            others compare the two directly: ``cosine``: 1 - cos(c_kj, c_qj); ``l1``: the sum of
            absolute differences; ``l2``: the Euclidean distance; ``kl``: KL(p_k || p_q) of
            p_k = softmax(c_kj) over the d dimensions, in float64 (FedSC does not define its own).
            A zero vector has cosine 0 with everything.

    Returns:
        relational [K, C, d], zero where ``holds`` is false; holds [K, C] bool.
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

    With p_k(j) the share of class j at client k, its discrepancy from balance is
    d_k = sqrt(1/2 sum_j (p_k(j) - 1/C)^2) (FedSC Eq. 10), and e_k is proportional to
    sigmoid(n_k / sum n - d_k / sum d) (Eq. 11). If every client is balanced, d_k / sum d is 0.

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
    """One prototype for each class: o_j = sum_k e_k r_kj over the holders of j (FedSC Eq. 12).

    The weights e are ``discrepancy_weights``, made to sum to 1 over the holders of each class.

    Args:
        relational: r [K, C, d].
        counts: [K, C] samples of each class at each client.

    Returns:
        consistent [C, d], zero where ``holds`` is false; holds [C] bool: whether any client holds
        the class.
    """
    holds = counts > 0
    weights = _share(discrepancy_weights(counts).unsqueeze(1) * holds)
    return torch.einsum("kc,kcd->cd", weights.to(relational.dtype), relational), holds.any(dim=0)


def _pairwise(vectors: Tensor, held: Tensor, metric: Metric) -> Tensor:
    """Distances [C, K, K] between the clients' ``vectors`` [C, K, d] (zero where not ``held``)."""
    if metric == "angle":
        center = vectors.sum(dim=1) / held.sum(dim=1, keepdim=True).clamp(min=1)
        phi = F.cosine_similarity(vectors, center.unsqueeze(1), dim=2)
        return (phi.unsqueeze(2) - phi.unsqueeze(1)).abs()
    if metric == "cosine":
        unit = F.normalize(vectors, dim=2)
        return 1 - unit @ unit.transpose(1, 2)
    if metric == "kl":
        return _divergence(vectors)
    # Not by a matrix product, whose rounding is larger than the distance of close vectors.
    p = 1.0 if metric == "l1" else 2.0
    return torch.cdist(vectors, vectors, p, compute_mode="donot_use_mm_for_euclid_dist")


def _divergence(vectors: Tensor) -> Tensor:
    """KL(p_k || p_q) [C, K, K] of p = softmax(``vectors`` [C, K, d]) over d."""
    logs = F.log_softmax(vectors.double(), dim=2)
    # Row by row: all pairs at once would need [C, K, K, d].
    rows = [(p.exp() * (p - logs)).sum(dim=2) for p in logs.split(1, dim=1)]
    return torch.stack(rows, dim=1)


def _share(values: Tensor) -> Tensor:
    """``values`` [K, ...] over their sum along K; zero where that is zero."""
    total = values.sum(dim=0)
    return values / total.masked_fill(total == 0, 1)
