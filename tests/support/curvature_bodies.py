"""Backbones for the tests of Fisher information."""

import torch
from torch import Tensor, nn


def with_batchnorm(input_shape: tuple[int, ...]) -> nn.Module:
    """A tiny body with running statistics and dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))


class Rows(nn.Module):
    """PyTorch's LSTM over the rows of an image, which ``vmap`` runs in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 8, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        """z [B, 8], the output after the last row."""
        z: Tensor = self.recurrent(torch.flatten(inputs, 1, 2))[0][:, -1]
        return z


def recurrent(input_shape: tuple[int, ...]) -> nn.Module:
    """The LSTM."""
    return Rows()


class Branching(nn.Module):
    """A linear layer and a branch that depends on its output, which ``vmap`` refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        """z [B, 8]."""
        z: Tensor = self.linear(inputs.flatten(1))
        return z if z.sum() > 0 else 2 * z


def branching(input_shape: tuple[int, ...]) -> nn.Module:
    """The body with a branch."""
    return Branching()
