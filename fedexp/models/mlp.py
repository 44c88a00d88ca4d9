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
    """Build a network of Linear-ReLU layers for flattened inputs, with z [B, feature_dim].

    Args:
        input_shape: shape of one input; any shape fits.
        hidden: widths of the layers before the last layer; may be empty.
        feature_dim: width of the last layer and of the features z.
        rectify: whether the last layer has a ReLU too, so that z >= 0.
        batch_norm: whether a BatchNorm precedes each hidden layer's ReLU.
    """
    flatten = nn.Flatten()
    *widths, last = [flat_width(flatten, input_shape), *hidden, feature_dim]
    layers = nn.Sequential(*dense(widths, batch_norm), *dense([widths[-1], last]))
    return nn.Sequential(flatten, layers if rectify else layers[:-1])
