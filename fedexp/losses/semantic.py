"""FedSC's two terms (KDD 2025): pure functions of features and prototypes.

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

    The loss of a sample is -log(sum over r of its class of exp(s(z, r) / tau) / sum over all r of
    exp(s(z, r) / tau)). s(z, r) = cos(z, r) / U(r), where U(r) is the mean distance of features
    from r and gets no gradient. The mean over the batch leaves out samples whose class has no
    relational prototype; if no sample remains, it is 0.

    Args:
        z: features [B, d].
        y: labels [B].
        relational: r [K, C, d].
        holds: [K, C] bool, whether r exists.
        temperature: tau.
        normalizer: U(r). ``batch``: the mean of ||z - r|| over this batch; ``none``: 1; or a tensor
            U [K, C]. For these three the gradient depends on the length of the features: with
            ``batch`` it falls with the square of the length. ``unit`` (not in the paper): like
            ``batch``, but z and r have length 1, and the loss is multiplied by the mean length of
            z, which gets no gradient. So the gradient with respect to z does not depend on the
            length of the features.
        real: [B], 1 for a sample, 0 for padding; None if all are samples.

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
    return factor * _mean_where(holds.any(dim=0)[y], losses, real)


def cpdr(
    z: Tensor,
    y: Tensor,
    consistent: Tensor,
    holds: Tensor,
    distance: Distance = "mse",
    real: Tensor | None = None,
) -> Tensor:
    """Consistent prototype discrepancy regularisation (FedSC Eq. 15).

    The mean distance of the batch's features from their class's consistent prototype o_y. The mean
    leaves out samples whose class has no prototype; if no sample remains, it is 0.

    Args:
        z: features [B, d].
        y: labels [B].
        consistent: o [C, d].
        holds: [C] bool, whether o exists.
        distance: ``mse``: the squared difference, mean over the d dimensions. ``l1``: the absolute
            difference, sum over the dimensions; the norm of its gradient is sqrt(d) even for small
            differences, so it needs a small weight. ``l2``: the Euclidean distance.
        real: [B], 1 for a sample, 0 for padding; None if all are samples.

    Returns:
        The loss, a scalar.
    """
    difference = z - consistent[y]
    if distance == "mse":
        losses = difference.square().mean(dim=1)
    else:
        losses = torch.linalg.vector_norm(difference, 1 if distance == "l1" else 2, dim=1)
    return _mean_where(holds[y], losses, real)


def mean_distances(z: Tensor, relational: Tensor, real: Tensor | None = None) -> Tensor:
    """U [K, C] (FedSC Eq. 13): the mean of ||z - r|| over ``z`` [n, d], for r [K, C, d]."""
    distances = torch.cdist(z, relational.flatten(0, 1))
    return mean_over(distances, real).reshape(relational.shape[:2])


def _mean_where(known: Tensor, losses: Tensor, real: Tensor | None) -> Tensor:
    """The mean of ``losses`` [B] over the samples with ``known`` [B]; 0 if there is none."""
    return mean_over(losses, known if real is None else known * real)
