"""Several backbones side by side, for a head that reads all of them."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor, nn


class Several(nn.Module):
    """Concatenates the features of its backbones; every backbone gets all inputs."""

    def __init__(self, backbones: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(backbones)
        self.traits: frozenset[str] = getattr(backbones[0], "traits", frozenset())

    def forward(self, inputs: Tensor) -> Tensor:
        """z [B, M d] of M backbones with features [B, d]."""
        return torch.cat([member(inputs) for member in self.members], dim=-1)


def several(build: Callable[..., nn.Module], count: int) -> Callable[..., nn.Module]:
    """A factory of ``count`` backbones side by side, each with its own random initial weights.

    Args:
        build: a backbone's factory, with the argument ``input_shape``.
        count: number of backbones; with 1 the result is ``build``.
    """
    if count == 1:
        return build

    @wraps(build)
    def side_by_side(input_shape: tuple[int, ...]) -> nn.Module:
        return Several([build(input_shape=input_shape) for _ in range(count)])

    return side_by_side
