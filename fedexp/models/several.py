"""Several backbones side by side, for a head that reads all of them."""

from collections.abc import Callable
from functools import wraps

import torch
from torch import Tensor, nn


class Several(nn.Module):
    """Concatenates the features that several backbones compute from the same inputs."""

    def __init__(self, backbones: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(backbones)
        self.traits: frozenset[str] = getattr(backbones[0], "traits", frozenset())

    def forward(self, inputs: Tensor) -> Tensor:
        """Concatenate the features [B, d] of each of M backbones to z [B, M d]."""
        return torch.cat([member(inputs) for member in self.members], dim=-1)


def several(build: Callable[..., nn.Module], count: int) -> Callable[..., nn.Module]:
    """Make a function that builds ``count`` backbones side by side.

    The random initial weights of the backbones differ.

    Args:
        build: builds one backbone; it has the argument ``input_shape``.
        count: number of backbones. If it is 1, the result is ``build``.
    """
    if count == 1:
        return build

    @wraps(build)
    def side_by_side(input_shape: tuple[int, ...]) -> nn.Module:
        return Several([build(input_shape=input_shape) for _ in range(count)])

    return side_by_side
