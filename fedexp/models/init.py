"""Initial weights that replace those of a network's constructor."""

from math import sqrt

from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedexp.config.schema import Init


def initialize(network: nn.Module, init: Init) -> None:
    """Draw the initial weights of ``network`` again, in place, from PyTorch's global generator.

    Args:
        network: a backbone or a head.
        init: "default" keeps what the constructor drew. "layer_default" draws each convolution and
            linear layer as PyTorch's own layers do (torchvision's networks draw theirs otherwise).
            "xavier_relu" draws their weights from Xavier's uniform distribution with gain sqrt(2)
            (Glorot and Bengio, AISTATS 2010) and keeps the biases.
    """
    if init == "default":
        return
    for layer in network.modules():
        if isinstance(layer, (_ConvNd, nn.Linear)):
            if init == "layer_default":
                layer.reset_parameters()
            else:
                nn.init.xavier_uniform_(layer.weight, gain=sqrt(2))
