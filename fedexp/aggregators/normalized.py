"""FedNova: divides a client's step by its number of local steps, before averaging."""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import NonNegativeFloat

from fedexp.aggregators.average import Weighting, of_aggregator
from fedexp.aggregators.clipping import steps
from fedexp.aggregators.server_step import ServerStep
from fedexp.config.compatibility.traits import DIVIDES_STEPS, KEEPS_MOMENTUM, LOCAL_MOMENTUM
from fedexp.contract import Client, Memory, PartUpdate, Tensors, Update
from fedexp.core.unit_distance import optimizer_of, unit_distance

_SHORT = (
    "aggregator.effective=steps: with momentum the server's step is tau/||a||_1 of FedAvg's, which "
    "is several times shorter; use aggregator.effective=norms or optimizer=sgd_plain"
)


class Normalized(ServerStep):
    """Averages the clients' steps after dividing each by its sum of gradient weights (FedNova).

    The method is from Wang et al., NeurIPS 2020, Section 4. In tau_i local steps with the learning
    rate eta, client i moves from the global weights w to w_i by a weighted sum of its gradients:
    $w_i - w = -eta G_i a_i$. The columns of G_i are the gradients, and the vector a_i has their
    weights. The server's update is

        $w <- w + tau_eff sum_i p_i (w_i - w) / ||a_i||_1$.

    p_i is the client's share in the average, and tau_eff is $sum_i p_i tau_i$. The sum of the
    weights $||a_i||_1$ is

        $tau_i$ for plain SGD,
        $(tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)$ for SGD with momentum rho,
        $(1 - (1 - eta mu)^tau_i) / (eta mu)$ for FedProx with plain SGD.

    In general, $||a_i||_1$ is the distance that a constant gradient of 1 moves a parameter at
    learning rate 1. With optimizers other than SGD, $||a_i||_1$ is replaced by tau_i.

    A client takes more local steps if it has more data or is faster. Without the division, more
    local steps would give this client a larger weight. If all clients take the same number of plain
    SGD steps, the method is FedAvg.

    Weight decay counts as a part of the gradients. The steps of all phases of local training count,
    as in SCAFFOLD. $||a_i||_1$ is the sum for one phase of tau_i steps; in later phases momentum
    starts at 0 again, so with several phases the true sum is smaller.

    Traffic: each update also has tau_i and $||a_i||_1$.

    Args:
        weighting: with ``samples``, as in the paper, p_i is proportional to the number of samples
            n_i. With ``uniform`` all p_i are equal.
        effective: with ``steps``, as in the paper and in the released code without momentum,
            tau_eff is the mean of tau_i. With ``norms`` it is the mean of ||a_i||_1, as in the
            released code with momentum and without the penalty of ``mu``. The server then moves as
            far as in FedAvg.
        mu: the strength of the penalty (mu/2) ||w - w^t||^2 that ``regularizer=proximal`` adds to
            the local objective; 0 without this penalty. It is used only for ||a_i||_1. If momentum
            and this penalty are combined, the released code computes another ||a_i||_1, which is
            not the sum of the gradients' weights.
    """

    traits = ServerStep.traits | {DIVIDES_STEPS}
    forbids = {
        KEEPS_MOMENTUM: "local.keep_optimizer=true: aggregator=normalized divides steps by the "
        "weights of this round's gradients; momentum of earlier rounds lengthens them; use "
        "optimizer.momentum=0 or local.keep_optimizer=false"
    }

    def __init__(
        self, weighting: Weighting, effective: Literal["steps", "norms"], mu: NonNegativeFloat
    ) -> None:
        super().__init__(weighting)
        self.effective, self.mu = effective, mu
        if effective == "steps":
            self.discourages = {**self.discourages, LOCAL_MOMENTUM: _SHORT}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The number tau_i of local steps, and ||a_i||_1, the sum of their gradients' weights."""
        optimizer = optimizer_of(client)
        norm = unit_distance(optimizer, client.steps, self.mu * client.learning_rate)
        return {"steps": torch.tensor(client.steps), "norm": torch.tensor(norm).double()}

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update after dividing its step by ||a_i||_1, its sum of gradient weights."""
        norm = of_aggregator(update).extras["norm"].item()
        scaled = {
            name: current[name] + step / norm
            for name, step in steps(update.weights, self.only_parameters(current)).items()
        }
        super().add(replace(update, weights=update.weights | scaled), current)

    def summand(self, update: PartUpdate, current: Tensors) -> float:
        """The client's term in tau_eff, times its ``factor``.

        With ``effective=steps`` the term is tau_i, the number of local steps. With ``norms`` it is
        ||a_i||_1, the sum of the gradients' weights.
        """
        reported = update.extras["steps" if self.effective == "steps" else "norm"]
        return self.factor(update) * reported.item()

    def step_size(self, total: float, step: Tensors) -> float:
        """The step size tau_eff: the average of the clients' terms (see ``summand``)."""
        return total / self.total
