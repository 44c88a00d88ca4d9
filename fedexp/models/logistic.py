"""Multinomial logistic regression: the features are the inputs."""

from torch import nn


def logistic() -> nn.Module:
    """The inputs, flattened to z [B, d]; with ``head=linear`` it is logistic regression."""
    return nn.Flatten()
