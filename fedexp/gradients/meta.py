"""Per-FedAvg: local steps lower the loss that the model has after one more gradient step."""

from typing import Literal

from pydantic import PositiveFloat

from fedexp.config.compatibility.traits import BATCH_NORM
from fedexp.contract import GradientAt, LocalGradient, Tensors
from fedexp.regularizers.anchors import combine


class Meta(LocalGradient):
    """The gradient of $f(w - alpha grad f(w))$, MAML's objective (Fallah et al., NeurIPS 2020).

    f is the client's loss and w are the local weights. g is the gradient of f at
    $w - alpha grad f(w)$, and H is the Hessian of f at w. The exact gradient of the objective is
    $(I - alpha H) g$. The paper draws independent batches D for grad f(w), D' for g and D'' for H.
    Here these batches are two or three parts of one batch; a part that would be empty has the
    batch's first sample. A step also computes the gradient on the whole batch, for the logged loss.
    The local optimizer takes the step, with its momentum and weight decay; other implementations
    take a step of plain SGD. The formulas agree with theirs. We found neither the paper's text nor
    code of its authors. There are two approximations of the exact gradient:

    * ``first_order`` uses g, without H.
    * ``hessian_free`` replaces H g by the difference of the gradients on D'' at $w + delta g$ and
      at $w - delta g$, divided by 2 delta.

    Args:
        alpha: step size alpha of the gradient step inside the objective.
        approximation: ``first_order`` or ``hessian_free``.
        delta: the step size delta in ``hessian_free``.
    """

    unread_if = {"delta": {"approximation": ("first_order",)}}

    forbids = {
        BATCH_NORM: "{other}: needs two samples or more, and gradient=meta divides each batch; use "
        "another model or head"
    }

    def __init__(
        self,
        alpha: PositiveFloat,
        approximation: Literal["first_order", "hessian_free"],
        delta: PositiveFloat,
    ) -> None:
        super().__init__()
        self.alpha, self.approximation, self.delta = alpha, approximation, delta

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The approximate gradient of the client's loss after one more gradient step."""
        parts = 2 if self.approximation == "first_order" else 3
        stepped = combine(parameters, gradient_at(parameters, 0, parts), -self.alpha)
        after = gradient_at(stepped, 1, parts)
        if self.approximation == "first_order":
            return after
        up = gradient_at(combine(parameters, after, self.delta), 2, parts)
        down = gradient_at(combine(parameters, after, -self.delta), 2, parts)
        curvature = combine(up, down, -1)
        return combine(after, curvature, -self.alpha / (2 * self.delta))
