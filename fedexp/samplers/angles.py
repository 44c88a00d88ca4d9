"""Angles between vectors, for samplers that compare clients by the directions of their updates."""

import torch
from torch import Tensor


def angles(vectors: Tensor) -> Tensor:
    """The angle of every pair of rows: arccos of the cosine, clipped to [-1, 1].

    It is used as a distance: the angle of a vector with itself is exactly 0. A zero vector has
    cosine 0, a right angle, with every other vector, also with another zero vector.

    Args:
        vectors: [N, D].

    Returns:
        [N, N] radians in [0, pi], float64, symmetric.
    """
    between = angles_between(vectors, vectors)
    return ((between + between.T) / 2).fill_diagonal_(0)


def angles_between(rows: Tensor, columns: Tensor) -> Tensor:
    """[N, M] angles of ``rows`` [N, D] with ``columns`` [M, D], as in ``angles``."""
    return (_units(rows) @ _units(columns).T).clamp_(-1, 1).acos_()


def _units(vectors: Tensor) -> Tensor:
    vectors = vectors.to(torch.float64)
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    units: Tensor = vectors / lengths.where(lengths > 0, 1)
    return units
