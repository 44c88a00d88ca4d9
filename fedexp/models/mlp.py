"""A multi-layer perceptron."""

from pydantic import PositiveInt
from torch import nn

from fedexp.models.layers import dense, flat_width


def mlp(
    input_shape: tuple[int, ...],
    hidden: list[PositiveInt],
    feature_dim: PositiveInt,
    rectify: bool,
) -> nn.Sequential:
    """Flatten inputs of any shape, then Linear-ReLU layers to z [B, feature_dim].

    Args:
        input_shape: shape of one input.
        hidden: widths of the layers before the last one; may be empty.
        feature_dim: width of the last layer.
        rectify: whether the last layer has a ReLU too (z >= 0).
    """
    flatten = nn.Flatten()
    layers = dense([flat_width(flatten, input_shape), *hidden, feature_dim])
    return nn.Sequential(flatten, layers if rectify else layers[:-1])
