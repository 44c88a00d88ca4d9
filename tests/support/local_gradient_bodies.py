"""Backbones for the tests of local gradients."""

from torch import nn


def with_batchnorm(input_shape: tuple[int, ...]) -> nn.Module:
    """A tiny body with running statistics."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU())
