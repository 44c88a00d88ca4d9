"""FedSAM: each local step uses the gradient at nearby weights with a high loss."""

import torch
from pydantic import PositiveFloat

from fedexp.contract import GradientAt, LocalGradient, Tensors
from fedexp.regularizers.anchors import combine


def scaled_to(length: float, direction: Tensors) -> Tensors:
    """Scale ``direction`` so that its norm over all parameters is ``length``. Zero stays zero."""
    if not direction:
        return {}
    norm = torch.stack([value.square().sum() for value in direction.values()]).sum().sqrt()
    scale = torch.where(norm > 0, length / norm, 0)
    return {name: scale * value for name, value in direction.items()}


class SharpnessAware(LocalGradient):
    """The gradient at $w + rho g / ||g||$, where g is the gradient at w (Qu et al., ICML 2022).

    w are the local weights before the step. The two gradients are computed on the same batch, so a
    step costs two gradients. The norm $||g||$ is over all trained parameters. Only the forward pass
    at w updates BatchNorm's running statistics.

    Apart from BatchNorm, this agrees with implementations by other authors. Neither the paper's
    text nor code of its authors was compared.

    Args:
        rho: norm of the step from w to the weights w + rho g / ||g||.
    """

    def __init__(self, rho: PositiveFloat) -> None:
        super().__init__()
        self.rho = rho

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradient at w + rho g / ||g||, where g is the gradient at the local weights w."""
        ascent = scaled_to(self.rho, self.direction(parameters, own))
        return gradient_at(combine(parameters, ascent))

    def direction(self, parameters: Tensors, own: Tensors) -> Tensors:
        """The direction of the step away from the local weights w: the gradient g at w.

        Only the direction of g matters, not its norm.
        """
        return own
