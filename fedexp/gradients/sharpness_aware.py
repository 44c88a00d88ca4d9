"""FedSAM: each local step takes its gradient at the worst weights nearby."""

from __future__ import annotations

from pydantic import PositiveFloat

from fedexp.core.client_protocol import GradientAt
from fedexp.core.messages import Tensors
from fedexp.core.sockets import LocalGradient
from fedexp.gradients.steps import along, scaled_to


class SharpnessAware(LocalGradient):
    """The gradient at w + rho g / ||g||, g the gradient at w (Qu et al., ICML 2022).

    Both gradients are taken on the same batch, so a step costs two gradients. The norm is over all
    trained parameters. The forward pass at w alone updates BatchNorm's running statistics.

    Args:
        rho: length of the step to the other weights.
    """

    def __init__(self, rho: PositiveFloat) -> None:
        super().__init__()
        self.rho = rho

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradient at the other weights."""
        return gradient_at(along(parameters, scaled_to(self.rho, self.direction(parameters, own))))

    def direction(self, parameters: Tensors, own: Tensors) -> Tensors:
        """The direction from w to the other weights, of any length: the gradient at w."""
        return own
