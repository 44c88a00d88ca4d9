"""Cosines between vectors."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cosines(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosines [N, M] of ``rows`` [N, D] with ``columns`` [M, D], float64 in [-1, 1].

    The cosine with a zero vector is 0.
    """
    return (_units(rows) @ _units(columns).T).clamp_(-1, 1)


def _units(vectors: Tensor) -> Tensor:
    return F.normalize(vectors.double(), dim=1, eps=torch.finfo(torch.float64).tiny)
