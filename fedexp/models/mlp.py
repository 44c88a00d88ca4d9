"""A multi-layer perceptron."""

from pydantic import PositiveInt
from torch import nn

from fedexp.models.layers import dense, flat_width


def mlp(
    input_shape: tuple[int, ...],
    hidden: list[PositiveInt],
    feature_dim: PositiveInt,
    rectify: bool,
    batch_norm: bool,
) -> nn.Sequential:
    """Flatten inputs of any shape and apply Linear-ReLU layers; z is [B, feature_dim].

    Args:
        input_shape: shape of one input.
        hidden: widths of the layers before the last one; may be empty.
        feature_dim: width of the last layer.
        rectify: whether the last layer has a ReLU too (z >= 0).
        batch_norm: whether a BatchNorm precedes each hidden layer's ReLU.
    """
    flatten = nn.Flatten()
    *widths, last = [flat_width(flatten, input_shape), *hidden, feature_dim]
    layers = nn.Sequential(*dense(widths, batch_norm), *dense([widths[-1], last]))
    return nn.Sequential(flatten, layers if rectify else layers[:-1])
