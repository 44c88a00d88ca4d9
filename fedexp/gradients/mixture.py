"""APFL: one step trains the shared model, and the client's own model in a mixture with it."""

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import MIXED_MODEL, MIXES_OWN_MODEL
from fedexp.contract import Client, GradientAt, LocalGradient, Memory, PartMessage, Setting, Tensors
from fedexp.personalization.own_model import as_own, mixture

_ALPHA = "personalization.alpha"


class Mixture(LocalGradient):
    """The gradients for the two models that APFL trains in a step (Deng et al., 2020, Alg. 1).

    w is the shared model, v is the client's own model, and f is the local objective. The mixture is
    the model $alpha v + (1 - alpha) w$. w moves along the gradient of f(w). v moves along the
    gradient of $f(alpha v + (1 - alpha) w)$ with respect to v, which is alpha times the gradient of
    f at the mixture. The two gradients are computed at the weights before the step, on the same
    batch. A step costs two gradients.
    """

    takes_only_merged = True
    traits = frozenset({MIXED_MODEL})
    needs = {MIXES_OWN_MODEL: "gradient=mixture: mixes with an own model; use personalization=apfl"}
    alpha: Tensor

    def setup(self, setting: Setting) -> None:
        """Make a buffer for alpha, the weight of the client's own model in the mixture."""
        self.register_buffer("alpha", torch.zeros(()), persistent=False)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Copy alpha, the mixture weight, from the personalization, whose ``begin`` runs first."""
        self.alpha.copy_(client.weights[_ALPHA])

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradients for the shared model w and for the client's own model v."""
        mixed = mixture(parameters, self.alpha)
        at_mixture = gradient_at(parameters | mixed)
        return own | as_own({name: self.alpha * at_mixture[name] for name in mixed})
