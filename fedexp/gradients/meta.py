"""Per-FedAvg: local steps that improve the model after one step of a client's own."""

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
    at w. The paper draws independent batches D, D' and D'' for the three; here a batch is divided
    into two or three parts. A step also takes the gradient on the whole batch, whose loss is
    logged. Both approximations are the paper's:

    * ``first_order`` leaves H out: grad f(w) on D, g on D'.
    * ``hessian_free`` takes H g as the difference of two gradients on D'', at w + delta g and at
      w - delta g, over 2 delta.

    Args:
        alpha: step size of a client's own step.
        approximation: of the Hessian.
        delta: step of the difference of gradients, for ``hessian_free``.
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
