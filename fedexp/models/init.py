"""Draw initial weights by other rules than a network's constructor."""

from math import sqrt

from torch import nn
from torch.nn.modules.conv import _ConvNd

from fedexp.config.schema import Init


def initialize(network: nn.Module, init: Init) -> None:
    """Draw the initial weights of ``network`` again, in place, from PyTorch's global generator.

    Args:
        network: a backbone or a head.
        init: "default" keeps the constructor's weights. "layer_default" uses PyTorch's default for
            each convolution and linear layer (torchvision's networks use other rules).
            "xavier_relu" draws the weights of these layers from Xavier's uniform distribution with
            gain sqrt(2) (Glorot and Bengio, AISTATS 2010) and keeps the biases. "kaiming_fan_out"
            draws the weights of convolutions from a normal distribution with variance 2 / fan_out
            (He et al., ICCV 2015) and keeps all other weights. fan_out is the number of output
            channels times the number of elements of the kernel. torchvision's ResNets use this
            rule; here it applies to the convolutions of any network.
    """
    for layer in drawn_layers(network, init):
        if init == "kaiming_fan_out":
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif init == "layer_default":
            layer.reset_parameters()
        else:
            nn.init.xavier_uniform_(layer.weight, gain=sqrt(2))


def drawn_layers(network: nn.Module, init: Init) -> list[_ConvNd | nn.Linear]:
    """The layers of ``network`` whose weights ``initialize`` draws."""
    if init == "default":
        return []
    kinds: tuple[type[_ConvNd | nn.Linear], ...]
    kinds = (_ConvNd,) if init == "kaiming_fan_out" else (_ConvNd, nn.Linear)
    return [layer for layer in network.modules() if isinstance(layer, kinds)]
