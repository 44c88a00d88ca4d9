"""Cosines between vectors."""

import torch
from torch import Tensor


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosines [N, M] of ``rows`` [N, D] with ``columns`` [M, D], float64 in [-1, 1].

    The cosine with a zero vector is 0.
    """
    return (_units(rows) @ _units(columns).T).clamp_(-1, 1)


def _units(vectors: Tensor) -> Tensor:
    vectors = vectors.to(torch.float64)
    lengths = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    units: Tensor = vectors / lengths.where(lengths > 0, 1)
    return units
