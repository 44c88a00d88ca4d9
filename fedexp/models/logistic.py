"""Multinomial logistic regression: the features are the inputs."""

from torch import nn


def logistic() -> nn.Module:
    """Flatten the inputs to z [B, d]; with ``head=linear`` the model is logistic regression."""
    return nn.Flatten()
