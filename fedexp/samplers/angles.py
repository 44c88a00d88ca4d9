"""Angles between vectors, for samplers that compare clients by the directions of their updates."""

import torch
from torch import Tensor


def angles_between(rows: Tensor, columns: Tensor) -> Tensor:
    """[N, M] angles of ``rows`` [N, D] with ``columns`` [M, D]: radians in [0, pi], float64.

    A zero vector has a right angle with every vector, also with another zero vector.
    """
    return (_units(rows) @ _units(columns).T).clamp_(-1, 1).acos_()


def _units(vectors: Tensor) -> Tensor:
    vectors = vectors.to(torch.float64)
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    units: Tensor = vectors / lengths.where(lengths > 0, 1)
    return units
