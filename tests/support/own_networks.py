"""Networks that know nothing of fedexp, as its users write them."""

from typing import cast

import torch
from torch import Tensor, nn


class Small(nn.Module):
    """Images or vectors of 64 numbers to ``width`` outputs."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(64, 12)
        self.last = nn.Linear(12, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))


class Normalised(nn.Module):
    """Its first layer is frozen by itself."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(input_shape[0], 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        for layer in (self.conv1, self.bn1):
            layer.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(torch.relu(self.bn1(self.conv1(x)))).flatten(1)


class Tied(nn.Module):
    """Two layers with one weight, a tensor with two names."""

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.flatten, self.first, self.second = nn.Flatten(), nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(self.flatten(x))))


TIED = ["model=custom", f"model._target_={__name__}.Tied"]
"""The options that choose this network."""


class Pair(Small):
    """Not a backbone: two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        z = super().forward(x)
        return z, z


def not_a_network() -> list[int]:
    return [1]


def wrongly_annotated() -> nn.Module:
    return cast(nn.Module, [1])
