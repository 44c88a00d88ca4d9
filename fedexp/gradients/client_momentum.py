"""FedCM and MoFedSAM: every local step combines the gradient with the last global step."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat

from fedexp.compatibility.traits import KEEPS_MOMENTUM, NOT_THE_MEAN
from fedexp.core.client_protocol import Client, GradientAt
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import LocalGradient
from fedexp.core.unit_distance import optimizer_of, unit_distance
from fedexp.gradients.sharpness_aware import SharpnessAware
from fedexp.regularizers.anchors import Anchors, shared_parameters

Share = Annotated[float, Field(gt=0, le=1)]


class ClientMomentum(LocalGradient):
    """Local steps along a mixture of the gradient and the last round's mean direction (FedCM).

    The method is from Xu et al., 2021, arXiv 2106.10874, Alg. 2. A local step is w <- w - eta v
    with v = alpha g + (1 - alpha) Delta. eta is the learning rate, g is the gradient, and Delta is
    the mean direction of the last round. After the round

        Delta <- (w^t - mean_cohort w_k) / (eta K),

    where K is the number of local steps. So Delta is the mean of all v in the cohort. In the first
    round Delta is 0, so steps are short. The next global model is the aggregator's result. With
    ``aggregator=uniform`` it is the paper's x - eta_g Delta with eta_g = eta K.

    The paper does not consider clients that take different numbers of steps. In this case eta K is
    the mean over the cohort, and each v has the same weight in Delta. With local momentum or
    Nesterov's momentum, ``unit_distance`` replaces K, as in SCAFFOLD. Weight decay of the optimizer
    is added to v, and ``local.grad_clip`` clips v. Private parameters have no Delta: their steps
    use g.

    Traffic: each update also has eta K. From the second round the message also has Delta, so that a
    client downloads twice the size of the model.

    Args:
        alpha: share of the gradient. With 1 the method is FedAvg.
    """

    summed = True
    forbids = MappingProxyType(
        {
            KEEPS_MOMENTUM: "local.keep_optimizer=true: client momentum divides the global step by "
            "the length of a round's steps; momentum of earlier rounds lengthens them; use "
            "optimizer.momentum=0 or local.keep_optimizer=false"
        }
    )
    discourages = MappingProxyType(
        {
            NOT_THE_MEAN: "FedCM, MoFedSAM: the server expects the aggregator's result to be the "
            "mean of the cohort; with this one the momentum has another length; use "
            "aggregator=uniform"
        }
    )

    def __init__(self, alpha: Share) -> None:
        super().__init__()
        self.alpha = alpha
        self.local = LocalGradient()

    def setup(self, setting: Setting) -> None:
        """Make a buffer for Delta. At first ``mean`` is empty, which means Delta = 0."""
        self.momentum = Anchors(shared_parameters(setting))
        self.mean: Tensors = {}

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The direction v of the step."""
        return {
            name: self.alpha * g + (1 - self.alpha) * self.momentum[name]
            if name in self.momentum
            else g
            for name, g in self.local(parameters, own, gradient_at).items()
        }

    def broadcast(self, round: int) -> Tensors:
        """Delta, from the second round."""
        return dict(self.mean)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set Delta."""
        self.momentum.fill(message.extras)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """eta K."""
        distance = unit_distance(optimizer_of(client), client.steps) * client.learning_rate
        return {"distance": torch.tensor(distance, dtype=torch.float64, device=client.device)}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Find the next Delta. The merged weights are returned unchanged."""
        distance = sums["distance"].item() / clients
        self.mean = {name: (current[name] - merged[name]) / distance for name in self.momentum}
        return merged

    def server_state(self) -> dict[str, Any]:
        """Delta."""
        return {"mean": dict(self.mean)}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.mean = self.momentum.beside(state["mean"])


class SharpnessAwareMomentum(ClientMomentum):
    """FedCM's v with the gradient of FedSAM in place of g (MoFedSAM; Qu et al., ICML 2022).

    Args:
        alpha: share of FedSAM's gradient, the paper's beta.
        rho: norm of the step from w to the weights where FedSAM computes its gradient.
    """

    def __init__(self, alpha: Share, rho: PositiveFloat) -> None:
        super().__init__(alpha)
        self.local = SharpnessAware(rho)
