"""Rank correlation."""

from scipy.stats import spearmanr
from torch import Tensor


def spearman(first: Tensor, second: Tensor) -> float | None:
    """Spearman's rank correlation of two tensors [N].

    The result is None if one of the tensors is constant, is empty or contains NaN.
    """
    for values in (first, second):
        if not len(values) or values.isnan().any() or values.min() == values.max():
            return None
    return float(spearmanr(first.cpu().numpy(), second.cpu().numpy()).statistic)
