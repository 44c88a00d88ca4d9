"""pFedMe: local steps on the Moreau envelope of the client's objective."""

from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import KEEPS_PROXIMAL_POINTS, PROXIMAL_POINTS
from fedexp.contract import Client, GradientAt, LocalGradient, Memory, PartMessage, Setting, Tensors
from fedexp.personalization.own_model import as_own, own_model, rate_of_round


class Moreau(LocalGradient):
    """The gradient $lam (w - theta)$ of the Moreau envelope (Dinh et al., NeurIPS 2020, Eq. 3 and
    6).

    w is the local copy of the shared model, and f is the client's loss. The weights theta
    approximately minimize $f(theta) + (lam / 2) ||theta - w||^2$. They are found by ``steps``
    gradient steps on the batch of the local step. The local step is $w <- w - eta lam (w - theta)$,
    where eta is the learning rate. It costs ``steps`` gradients, and one more at w for the logged
    loss. Then theta becomes the client's own model of ``personalization=pfedme``: this part also
    returns the gradient with which a plain SGD step moves the client's own model to theta.

    Args:
        lam: strength of the proximal term. eta lam must be below 2.
        steps: number of gradient steps for theta, as in the authors' code. The paper's algorithm
            instead takes steps until theta is accurate enough.
        rate: step size of the gradient steps for theta. The authors' code also adds a weight decay
            of 0.001 to these steps; this part has none, like the paper's objective.
        start: where theta starts in each local step. With "previous" (authors' code) theta starts
            from the theta of the last local step, and in the first step from the global model. With
            "shared" theta starts from w. The paper does not name the start.
    """

    takes_only_merged = True
    traits = frozenset({PROXIMAL_POINTS})
    needs = {
        KEEPS_PROXIMAL_POINTS: "gradient=moreau: keeps theta in an own model; use "
        "personalization=pfedme"
    }
    eta: Tensor

    def __init__(
        self,
        lam: PositiveFloat,
        steps: PositiveInt,
        rate: PositiveFloat,
        start: Literal["previous", "shared"],
    ) -> None:
        super().__init__()
        self.lam, self.steps, self.rate, self.start = lam, steps, rate, start

    def setup(self, setting: Setting) -> None:
        """Make a buffer for eta, the learning rate of local steps."""
        self.register_buffer("eta", torch.zeros(()), persistent=False)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set eta to the learning rate of this round."""
        self.eta.fill_(rate_of_round(client))

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradients for the shared model w and for the client's own model.

        Parameters of the loss have no copy in the own model; they keep their gradient at w.
        """
        before = own_model(parameters)
        w = {name: parameters[name] for name in before}
        theta = before if self.start == "previous" else w
        for _ in range(self.steps):
            g = gradient_at(parameters | theta)
            theta = {
                name: value - self.rate * (g[name] + self.lam * (value - w[name]))
                for name, value in theta.items()
            }
        step = {name: (before[name] - value) / self.eta for name, value in theta.items()}
        moreau = {name: self.lam * (w[name] - value) for name, value in theta.items()}
        return own | moreau | as_own(step)
