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
    if init == "default":
        return
    for layer in network.modules():
        if isinstance(layer, _ConvNd) and init == "kaiming_fan_out":
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(layer, (_ConvNd, nn.Linear)) and init == "layer_default":
            layer.reset_parameters()
        elif isinstance(layer, (_ConvNd, nn.Linear)) and init == "xavier_relu":
            nn.init.xavier_uniform_(layer.weight, gain=sqrt(2))
