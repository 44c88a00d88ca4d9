"""FedSC's two loss terms, RPCL and CPDR (KDD 2025), as functions of features and prototypes.

RPCL contrasts features with relational prototypes, one for each client and class. CPDR pulls
features to consistent prototypes, one for each class.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.forward import mean_over

Distance = Literal["mse", "l1", "l2"]
Normalizer = Literal["batch", "none", "unit"]


def rpcl(
    z: Tensor,
    y: Tensor,
    relational: Tensor,
    holds: Tensor,
    temperature: float = 0.05,
    normalizer: Normalizer | Tensor = "batch",
    real: Tensor | None = None,
) -> Tensor:
    """Relational prototype contrastive learning (FedSC Eq. 13-14).

    z are the features of a sample, and r is a relational prototype. The loss of a sample is
    -log(S_own / S_all). S_own is the sum of exp(s(z, r) / tau) over the r of the sample's class.
    S_all is the same sum over all r. The similarity is s(z, r) = cos(z, r) / U(r). U(r) is the mean
    distance of features from r and gets no gradient. The result is the mean loss of the samples of
    the batch whose class has a relational prototype, or 0 if there are no such samples.

    Args:
        z: features [B, d].
        y: labels [B].
        relational: the relational prototypes [K, C, d].
        holds: [K, C] bool, whether the relational prototype exists.
        temperature: tau.
        normalizer: how to compute U(r). With ``batch`` it is the mean of ||z - r|| over this batch,
            and with ``none`` it is 1. A tensor [K, C] holds the values U(r) themselves. With these
            three the gradient depends on the norm of the features: with ``batch`` it falls with the
            square of the norm. ``unit`` (not in the paper) computes U(r) like ``batch``, but from z
            and r scaled to norm 1. It also multiplies the loss by the mean norm of z, which gets no
            gradient. So with ``unit`` the gradient with respect to z does not depend on the norm of
            the features.
        real: [B], 1 for a sample, 0 for padding. If None, all are samples.

    Returns:
        The loss, a scalar.
    """
    unit, rows = F.normalize(z, dim=1), F.normalize(relational, dim=2)
    scores = unit @ rows.flatten(0, 1).T / temperature  # [B, K * C]
    factor: Tensor | float = 1.0
    if normalizer == "batch":
        normalizer = mean_distances(z.detach(), relational, real)
    elif normalizer == "unit":
        normalizer = mean_distances(unit.detach(), rows, real)
        factor = mean_over(torch.linalg.vector_norm(z.detach(), dim=1), real)
    if isinstance(normalizer, Tensor):
        scores = scores / normalizer.flatten().clamp(min=torch.finfo(scores.dtype).eps)
    # The least finite number replaces -inf: the gradient of logsumexp is NaN if all are -inf.
    scores = scores.masked_fill(~holds.flatten(), torch.finfo(scores.dtype).min)
    by_class = scores.reshape(len(z), *holds.shape)
    own = torch.take_along_dim(by_class, y[:, None, None], dim=2).squeeze(2)  # [B, K]
    losses = scores.logsumexp(dim=1) - own.logsumexp(dim=1)
    return factor * _mean_where(holds.any(dim=0).index_select(0, y), losses, real)


def cpdr(
    z: Tensor,
    y: Tensor,
    consistent: Tensor,
    holds: Tensor,
    distance: Distance = "mse",
    real: Tensor | None = None,
) -> Tensor:
    """Consistent prototype discrepancy regularisation (FedSC Eq. 15).

    The loss is the mean distance of the features from the consistent prototype of their class. The
    mean is over the samples of the batch whose class has a prototype. If there are no such samples,
    the loss is 0.

    Args:
        z: features [B, d].
        y: labels [B].
        consistent: the consistent prototypes [C, d].
        holds: [C] bool, whether the class has a prototype.
        distance: the distance from the prototype. ``mse`` is the mean squared difference over the d
            dimensions. ``l1`` is the sum of the absolute differences. The norm of its gradient is
            sqrt(d) even for small differences, so ``l1`` needs a small weight. ``l2`` is the
            Euclidean distance.
        real: [B], 1 for a sample, 0 for padding. If None, all are samples.

    Returns:
        The loss, a scalar.
    """
    difference = z - consistent.index_select(0, y)
    if distance == "mse":
        losses = difference.square().mean(dim=1)
    else:
        losses = torch.linalg.vector_norm(difference, 1 if distance == "l1" else 2, dim=1)
    return _mean_where(holds.index_select(0, y), losses, real)


def mean_distances(z: Tensor, relational: Tensor, real: Tensor | None = None) -> Tensor:
    """For each prototype r, the mean of ||z - r|| over the features z [n, d].

    These are the U(r) of Eq. 13, with shape [K, C].
    """
    distances = torch.cdist(z, relational.flatten(0, 1))
    return mean_over(distances, real).reshape(relational.shape[:2])


def _mean_where(known: Tensor, losses: Tensor, real: Tensor | None) -> Tensor:
    """The mean of the ``losses`` [B] whose ``known`` [B] is true, or 0 if none is true."""
    return mean_over(losses, known if real is None else known * real)
