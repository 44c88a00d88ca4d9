"""The backbone of multinomial logistic regression: the features are the flattened inputs."""

from torch import nn


def logistic() -> nn.Module:
    """Flatten inputs to z [B, d]. With ``head=linear`` the model is logistic regression."""
    return nn.Flatten()
