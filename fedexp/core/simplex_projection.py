"""Projection onto the probability simplex: vectors of numbers of at least 0 whose sum is 1."""

import torch
from torch import Tensor


def nearest_in_simplex(points: Tensor) -> Tensor:
    """The nearest point of the simplex to each point, with respect to the Euclidean distance.

    It is $max(x - t, 0)$ for the t that makes the sum 1.

    Args:
        points: x, [..., M].

    Returns:
        [..., M]: elements of at least 0, with the sum 1 along the last dimension.
    """
    ordered = points.sort(dim=-1, descending=True).values
    excess = ordered.cumsum(dim=-1) - 1
    counts = torch.arange(1, points.shape[-1] + 1)
    last = (ordered - excess / counts > 0).sum(dim=-1, keepdim=True)
    return (points - excess.gather(-1, last - 1) / last).clamp(min=0)
