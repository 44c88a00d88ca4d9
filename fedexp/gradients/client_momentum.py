"""FedCM and MoFedSAM: every local step combines the gradient with the last global step."""

import torch
from pydantic import PositiveFloat

from fedexp.config.compatibility.traits import (
    ACTS_ON_SHARED,
    DIVIDES_STEPS,
    KEEPS_MOMENTUM,
    LOCAL_MOMENTUM,
    NOT_THE_MEAN,
    OTHER_STARTS,
    OTHER_STEPS,
)
from fedexp.config.schema import PositiveShare
from fedexp.contract import Client, GradientAt, LocalGradient, Memory, PartMessage, Setting, Tensors
from fedexp.core.unit_distance import optimizer_of, unit_distance
from fedexp.gradients.sharpness_aware import SharpnessAware
from fedexp.regularizers.anchors import Anchors


class ClientMomentum(LocalGradient):
    """Local steps along a mixture of the gradient and the last round's mean direction (FedCM).

    The method is from Xu et al., 2021, arXiv 2106.10874. The equations agree with implementations
    by other authors; neither the paper's text nor code of its authors was compared.

    A local step is $w <- w - eta v$ with $v = alpha g + (1 - alpha) Delta$. eta is the learning
    rate, g is the gradient, and Delta is the mean direction of the last round. After the round the
    server computes the next

        $Delta <- (w^t - mean_cohort w_k) / (eta K)$,

    where w^t is the global model that the round started from, w_k is the trained model of client k,
    and K is the number of local steps. So Delta is the mean of all v in the cohort. In the first
    round Delta is 0, so steps are short. The next global model is the aggregator's result. With
    ``aggregator=uniform`` this is $w^t - eta_g Delta$ with $eta_g = eta K$.

    The equations assume that all clients take the same number of steps. If the numbers differ, the
    mean of eta K over the cohort is used, and each v has the same weight in Delta. If the local
    optimizer has momentum, the result of ``unit_distance`` replaces K, as in SCAFFOLD. K is the
    number of all local steps of the round. If a personalization trains a parameter in only some of
    these steps, Delta is too small for this parameter. The steps of other optimizers are no sums of
    v, so that Delta is no mean of v; a run warns of them. Weight decay of the optimizer is added to
    v, and Delta also has it, so that in the long run it acts with weight_decay / alpha: to compare
    with other methods, multiply ``optimizer.weight_decay`` by alpha. ``local.grad_clip`` clips v.
    The steps of private parameters use g instead of v.

    Each client sends the number eta K besides its weights. From the second round the server sends
    Delta besides the weights, so a client downloads twice the size of the model.

    Args:
        alpha: weight of the gradient in v. With 1 the method is FedAvg.
    """

    summed = True
    saved = ("mean",)
    traits = frozenset({ACTS_ON_SHARED, DIVIDES_STEPS})
    forbids = {
        KEEPS_MOMENTUM: "local.keep_optimizer=true: client momentum divides the global step by the "
        "length of a round's steps; momentum of earlier rounds lengthens them; use "
        "optimizer.momentum=0 or local.keep_optimizer=false"
    }
    discourages = {
        NOT_THE_MEAN: "FedCM, MoFedSAM: the server expects the merged weights to be the mean of "
        "the cohort's; with this {other} the momentum has another length; take another {other}; "
        "aggregator=uniform fits",
        OTHER_STEPS: "FedCM, MoFedSAM: the server expects steps of SGD; with this optimizer the "
        "momentum can outweigh the gradients, so that the model moves on in one direction; use "
        "optimizer=sgd_plain",
        LOCAL_MOMENTUM: "FedCM, MoFedSAM: with a local optimizer that has momentum, too, training "
        "may collapse after some rounds; use optimizer=sgd_plain",
        **dict.fromkeys(
            OTHER_STARTS,
            "FedCM, MoFedSAM: the server computes the mean direction from the global weights; this "
            "{other} may start clients from other weights; the momentum is then another",
        ),
    }

    def __init__(self, alpha: PositiveShare) -> None:
        super().__init__()
        self.alpha = alpha
        self.local = LocalGradient()

    def setup(self, setting: Setting) -> None:
        """Make a buffer for Delta, the last round's mean direction. At first Delta is 0."""
        self.momentum = Anchors(setting.model.shared_parameters)
        self.mean: Tensors = {}

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The direction of the step, a weighted mean of the gradient and Delta."""
        return {
            name: self.alpha * g + (1 - self.alpha) * self.momentum[name]
            if name in self.momentum
            else g
            for name, g in self.local(parameters, own, gradient_at).items()
        }

    def broadcast(self, round: int) -> Tensors:
        """Server: send Delta, the last round's mean direction; in the first round send nothing."""
        return dict(self.mean)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Client: store Delta, the received mean direction, for all local steps of this turn."""
        self.momentum.fill(message.extras)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Client: send eta K; if the optimizer has momentum, ``unit_distance`` replaces K."""
        distance = unit_distance(optimizer_of(client), client.steps) * client.learning_rate
        return {"distance": torch.full((), distance, dtype=torch.float64, device=client.device)}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Server: compute Delta, the round's mean direction. Return ``merged`` unchanged."""
        distance = sums["distance"].item() / clients
        self.mean = {name: (current[name] - merged[name]) / distance for name in self.momentum}
        return merged


class SharpnessAwareMomentum(ClientMomentum):
    """FedCM with FedSAM's gradient in place of the plain one (MoFedSAM; Qu et al., ICML 2022).

    The equations agree with implementations by other authors; neither the paper's text nor code of
    its authors was compared.

    Args:
        alpha: weight of FedSAM's gradient in a step; the paper calls it beta.
        rho: norm of the step from w to the weights where FedSAM computes its gradient.
    """

    traits = ClientMomentum.traits - {ACTS_ON_SHARED}

    def __init__(self, alpha: PositiveShare, rho: PositiveFloat) -> None:
        super().__init__(alpha)
        self.local = SharpnessAware(rho)
