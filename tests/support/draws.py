"""Standard normal numbers that follow from a seed."""

import torch
from torch import Tensor


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of this shape."""
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def draw64(*shape: int, seed: int = 0) -> Tensor:
    """Numbers of this shape in float64."""
    return draw(*shape, seed=seed, dtype=torch.float64)
