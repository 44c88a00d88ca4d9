"""Per-FedAvg: local steps improve the model that a client gets after one gradient step."""

from __future__ import annotations

from types import MappingProxyType
from typing import Literal

from pydantic import PositiveFloat

from fedexp.compatibility.traits import BATCH_NORM
from fedexp.core.client_protocol import GradientAt
from fedexp.core.messages import Tensors
from fedexp.core.sockets import LocalGradient
from fedexp.gradients.steps import along


class Meta(LocalGradient):
    """The gradient of f(w - alpha grad f(w)), MAML's objective (Fallah et al., NeurIPS 2020).

    g is the gradient at w - alpha grad f(w). The exact gradient is (I - alpha H) g, H the Hessian
    at w. The paper draws independent batches D for grad f(w), D' for g and D'' for H; here they are
    two or three parts of one batch. A step also takes the gradient on the whole batch, which gives
    the logged loss. Both approximations are from the paper:

    * ``first_order`` leaves H out: the gradient is g.
    * ``hessian_free`` replaces H g by the difference of the gradients on D'' at w + delta g and at
      w - delta g, divided by 2 delta.

    Args:
        alpha: size of the step in the objective.
        approximation: how the Hessian is approximated.
        delta: see ``hessian_free``.
    """

    forbids = MappingProxyType(
        {
            BATCH_NORM: "{other}: needs two samples or more, and gradient=meta divides each batch; "
            "use another model or head"
        }
    )

    def __init__(
        self,
        alpha: PositiveFloat,
        approximation: Literal["first_order", "hessian_free"],
        delta: PositiveFloat,
    ) -> None:
        super().__init__()
        self.alpha, self.approximation, self.delta = alpha, approximation, delta

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The approximate gradient of the objective after one step."""
        parts = 2 if self.approximation == "first_order" else 3
        stepped = along(parameters, gradient_at(parameters, 0, parts), -self.alpha)
        after = gradient_at(stepped, 1, parts)
        if self.approximation == "first_order":
            return after
        up = gradient_at(along(parameters, after, self.delta), 2, parts)
        down = gradient_at(along(parameters, after, -self.delta), 2, parts)
        curvature = along(up, down, -1)
        return along(after, curvature, -self.alpha / (2 * self.delta))
