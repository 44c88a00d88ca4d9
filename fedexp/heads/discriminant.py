"""Linear discriminant analysis with Gaussians that a client mixes with the received ones (pFedFDA).

n is the number of features, d their width, C the number of classes.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from fedexp.core.prototypes import class_prototypes

_SHRINKAGE = 1e-4
"""The share of a multiple of the identity in the covariance that is inverted."""

_SMOOTHING = 1e-4
"""Added to the class shares, so that a class that a client lacks has a finite logit."""

Labelled = tuple[Tensor, Tensor]
"""Features [n, d] float64 and their labels [n]."""


def class_priors(counts: Tensor) -> Tensor:
    """The prior pi [C] float64 of each class, from the client's class counts [C]."""
    shares = counts.double() / counts.sum().clamp(min=1) + _SMOOTHING
    return shares / shares.sum()


def gaussian(samples: Labelled, means: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The class means [C, d] and the common covariance [d, d] of features, float64.

    A class without features has its row of ``means``. The covariance is the sum of $(z - mean)
    (z - mean)^T$ over the n features, divided by n - 1, plus ``ridge`` times the identity.
    """
    z, labels = samples
    own, counts = class_prototypes(z, labels, len(means))
    own = torch.where(counts.unsqueeze(1) > 0, own, means.double())
    away = z - own[labels]
    covariance = away.T @ away / max(len(z) - 1, 1)
    return own, covariance + ridge * _identity_like(covariance)


def discriminant(means: Tensor, covariance: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """The linear classifier of Gaussians with one covariance: weight [C, d] and bias [C].

    The logit of class c is $z^T S^-1 mu_c - mu_c^T S^-1 mu_c / 2 + log pi_c$ (linear discriminant
    analysis). S is the covariance with a small multiple of the identity in it.
    """
    variance = covariance.trace() / len(covariance)
    shrunk = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * variance * _identity_like(covariance)
    weight = torch.linalg.solve_ex(shrunk, means.T)[0].T
    return weight, priors.log() - (means * weight).sum(dim=1) / 2


def _identity_like(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def interpolated(own: Tensor, common: Tensor, beta: Tensor | float) -> Tensor:
    """beta * own + (1 - beta) * common."""
    return beta * own + (1 - beta) * common


def best_betas(
    splits: Sequence[tuple[Labelled, Labelled]],
    means: Tensor,
    covariance: Tensor,
    priors: Tensor,
    ridge: float,
    separate: bool,
) -> list[float]:
    """The betas of means and covariance with the smallest cross-entropy on held-out features.

    L-BFGS-B minimises the sum over ``splits``, pairs of the features that give the client's
    Gaussians and the features that are held out. It starts from 0.5 and takes at most 10 steps.

    Args:
        splits: the (training, held-out) pairs. If there are none, the betas are 0.
        means: the received class means [C, d].
        covariance: the received covariance [d, d].
        priors: of the client, [C].
        ridge: see ``gaussian``.
        separate: whether means and covariance have two betas; else they have the same.
    """
    folds = [(gaussian(training, means, ridge), heldout) for training, heldout in splits]

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        betas = torch.from_numpy(values).to(means.device).requires_grad_()
        total = betas.new_zeros(())
        for (own_means, own_covariance), (z, labels) in folds:
            both = (
                interpolated(own_means, means, betas[0]),
                interpolated(own_covariance, covariance, betas[-1]),
            )
            total = total + F.cross_entropy(F.linear(z, *discriminant(*both, priors)), labels)
        (slope,) = torch.autograd.grad(total, betas)
        return total.item(), slope.cpu().numpy()

    if not folds:
        return [0.0, 0.0]
    start = np.full(1 + separate, 0.5)
    options = {"maxiter": 10, "gtol": 1e-3}
    with torch.enable_grad():
        found = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options
        ).x.tolist()
    return [found[0], found[-1]]


def stratified(samples: Labelled, folds: int, seed: int) -> list[tuple[Labelled, Labelled]]:
    """Pairs of training and held-out samples, one for each fold; each fold has all classes.

    Classes with fewer samples than folds are left out. If there is no other class, there are no
    pairs.
    """
    z, labels = samples
    kept = (labels.bincount()[labels] >= folds).nonzero().flatten()
    if len(kept) == 0:
        return []
    z, labels = z[kept], labels[kept]
    rule = StratifiedKFold(folds, shuffle=True, random_state=seed % 2**32)
    split = rule.split(np.zeros(len(labels)), labels.cpu().numpy())
    return [
        ((z[training], labels[training]), (z[heldout], labels[heldout]))
        for training, heldout in split
    ]
