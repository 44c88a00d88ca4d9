"""FedPAC's weights for combining classifiers (Xu et al., ICLR 2023): pure functions.

C is the number of classes, d the width of the features, K the number of clients in the cohort.
"""

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

from fedexp.core.prototypes import class_prototypes


def feature_statistics(features: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Compute the statistics h and V of a client's features, for ``collaboration_weights``.

    The features of the client's n samples are z. p_c is the share of class c, mu_c is the mean
    feature of class c, and mean_c is the average over the samples of class c. The statistic h has a
    row h_c = p_c mu_c for each class.
    V = (sum_c p_c mean_c ||z||^2 - sum_c p_c^2 ||mu_c||^2) / n is the variance of h as an estimate
    from n samples.

    Args:
        features: z [n, d].
        labels: [n].
        num_classes: C.

    Returns:
        h [C, d], and V, a scalar. They are computed in float64 and returned in the dtype of
        ``features``.
    """
    z = features.double()
    means, counts = class_prototypes(z, labels, num_classes)
    h = means * (counts / len(z)).unsqueeze(1)
    variance = (z.square().sum() / len(z) - h.square().sum()) / len(z)
    return h.to(features.dtype), variance.clamp(min=0).to(features.dtype)


def collaboration_weights(statistics: Tensor, variances: Tensor) -> np.ndarray:
    """The weights alpha_ij of client j's classifier in the combined classifier of client i.

    Row i minimises sum_j alpha_ij^2 V_j + sum_c ||sum_j alpha_ij (h_ic - h_jc)||^2 over weights
    alpha_ij >= 0 whose sum is 1. h_ic is the row of class c in the h of client i. The first term is
    a variance, and the second is a squared bias.

    Args:
        statistics: h [K, C, d] of the K clients.
        variances: V [K] of the K clients.

    Returns:
        alpha [K, K] float64.
    """
    rows = statistics.double().cpu().flatten(1).numpy()
    rows = rows - rows.mean(axis=0)  # only differences matter; small numbers are more precise
    inner, spread = rows @ rows.T, np.diag(variances.double().cpu().numpy())
    weights = []
    for i in range(len(rows)):
        bias = inner - inner[i] - inner[:, i : i + 1] + inner[i, i]
        weights.append(_smallest_on_simplex(spread + bias))
    return np.stack(weights)


def combined(tensors: list[Tensor], weights: np.ndarray) -> Tensor:
    """Compute the weighted sum of tensors of one shape in float64, and return it in their dtype."""
    stacked = torch.stack(tensors)
    shares = torch.as_tensor(weights, dtype=torch.float64, device=stacked.device)
    mean: Tensor = torch.tensordot(shares, stacked.double(), dims=1)
    return mean.to(stacked.dtype)


def _smallest_on_simplex(matrix: np.ndarray) -> np.ndarray:
    """Find the weights x >= 0 with sum 1 that minimise x' P x.

    P is ``matrix``, symmetric without negative eigenvalues. With P = R'R the function solves a
    nonnegative least squares problem: it finds the y >= 0 that minimises ||R y||^2 + (sum y - 1)^2.
    Among all y with a given sum, a multiple of x is the best. So x = y / sum y.
    """
    values, vectors = np.linalg.eigh(matrix)
    scale = values[-1] if values[-1] > 0 else 1.0
    root = np.sqrt(np.clip(values / scale, 0, None))[:, None] * vectors.T
    goal = np.append(np.zeros(len(matrix)), 1.0)
    solution, _ = nnls(np.vstack([root, np.ones(len(matrix))]), goal)
    weights: np.ndarray = solution / solution.sum()
    return weights
