"""Rank correlation."""

from scipy.stats import spearmanr
from torch import Tensor


def spearman(first: Tensor, second: Tensor) -> float | None:
    """Spearman's rank correlation of two tensors [N]; None if one of them is constant or empty."""
    if any(not len(values) or values.min() == values.max() for values in (first, second)):
        return None
    return float(spearmanr(first.cpu().numpy(), second.cpu().numpy()).statistic)
