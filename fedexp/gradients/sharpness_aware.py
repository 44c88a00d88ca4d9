"""FedSAM: each local step takes its gradient at the worst weights nearby."""

from __future__ import annotations

from pydantic import PositiveFloat

from fedexp.core.client_protocol import GradientAt
from fedexp.core.messages import Tensors
from fedexp.core.sockets import LocalGradient
from fedexp.gradients.steps import NO_RUNNING_STATISTICS, along, scaled_to


class SharpnessAware(LocalGradient):
    """The gradient at w + rho g / ||g||, g the gradient at w (Qu et al., ICML 2022, Algorithm 1).

    Both gradients are taken on the same batch, so a step costs two. The norm is over all trained
    parameters. As in the optimizer's own paper (Foret et al., ICLR 2021) w itself does not move to
    the other point, and running statistics follow the first pass alone.

    Args:
        rho: length of the step to the other point.
    """

    forbids = NO_RUNNING_STATISTICS

    def __init__(self, rho: PositiveFloat) -> None:
        super().__init__()
        self.rho = rho

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradient at the perturbed weights."""
        return gradient_at(along(parameters, scaled_to(self.rho, own)))
