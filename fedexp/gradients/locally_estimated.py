"""FedLESAM: sharpness of the global model, estimated from the global models that came before."""

from __future__ import annotations

from pydantic import PositiveFloat

from fedexp.core.client_protocol import Client, GradientAt
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import LocalGradient
from fedexp.gradients.steps import NO_RUNNING_STATISTICS, along, scaled_to
from fedexp.regularizers.anchors import Anchors, shared_parameters


class LocallyEstimated(LocalGradient):
    """The gradient at w + rho d / ||d||, d = w_old - w^t (Fan et al., ICML 2024, Eq. 7).

    w^t is the global model of this round, w_old the one that this client received last. The server
    moved from w_old to w^t, so that d points up the global loss. A step costs one gradient more
    than a plain one, because the log has the loss at w. In a client's first round d is 0, and the
    gradient is the plain one.

    Args:
        rho: length of the step to the other point.
    """

    forbids = NO_RUNNING_STATISTICS

    def __init__(self, rho: PositiveFloat) -> None:
        super().__init__()
        self.rho = rho

    def setup(self, setting: Setting) -> None:
        """Make one direction for each shared parameter."""
        self.ascent = Anchors(shared_parameters(setting))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the direction, and keep this round's global model for the client's next turn."""
        received = {name: message.weights[name].clone() for name in self.ascent}
        self.ascent.fill({name: memory[name] - received[name] for name in memory})
        memory.update(received)

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradient at the perturbed weights."""
        direction = {name: self.ascent[name] for name in parameters if name in self.ascent}
        return gradient_at(along(parameters, scaled_to(self.rho, direction)))
