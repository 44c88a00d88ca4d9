"""FedDyn: local objectives are bent until their optima agree with the global one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Regularizer
from fedexp.regularizers.anchors import (
    Anchors,
    combine,
    population,
    prefixed,
    shared_parameters,
    total,
    with_prefix,
)


class Dynamic(Regularizer):
    """-<h_k, w> + (alpha/2) ||w - w^t||^2 over the trained shared parameters (FedDyn).

    Acar et al., ICLR 2021, Alg. 1. After training, client and server update

        h_k <- h_k - alpha (w_k - w^t),
        h <- h - (alpha / N) sum_cohort (w_k - w^t),
        w^(t+1) = mean_cohort w_k - h / alpha,

    so that h is the mean of all h_k; N counts the clients that have data. What is kept is not h_k
    but the drift d_k = -h_k / alpha, the sum of a client's steps, and instead of h the population's
    mean drift, which is what the server adds. Only the weights cross the network.

    Where it comes to rest every w_k is w^t and h is zero, so that the gradients of all F_k, which
    are the h_k, sum to zero. It needs ``aggregator=uniform``, from whose mean the server knows the
    sum of the steps. With ``sample_weighted`` that optimum is of the objective weighted by samples
    if all clients take part, and of none in particular if not; an aggregator that takes a step of
    its own does not fit.

    alpha = 0 switches everything off and is FedAvg to the bit. It is not the limit of a small
    alpha, with which the server adds the drift all the same.
    """

    def __init__(self, alpha: NonNegativeFloat) -> None:
        super().__init__()
        self.alpha = alpha

    def setup(self, setting: Setting) -> None:
        """Room for w^t and d_k; the mean drift is not there yet, which is zero."""
        shapes = shared_parameters(setting)
        self.start, self.drift = Anchors(shapes), Anchors(shapes)
        self.population = population(setting)
        self.mean_drift: Tensors = {}

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """Where this client starts, and how far it has drifted."""
        self.start.set(client.weights)
        self.drift.fill(with_prefix("drift", memory))

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar."""
        shared = [(name, value) for name, value in parameters if name in self.start]
        linear = total([(self.drift[name] * value).sum() for name, value in shared])
        spring = total([(value - self.start[name]).square().sum() for name, value in shared])
        return self.alpha * (linear + 0.5 * spring)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Nothing; the drift grows by the step just taken."""
        if self.alpha > 0:
            weights = client.weights
            step = {name: weights[name] - self.start[name] for name in self.start}
            memory.update(combine(memory, prefixed("drift", step)))
        return {}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The cohort's mean plus the population's mean drift."""
        if self.alpha == 0:
            return merged
        step = {name: merged[name] - current[name] for name in self.start}
        self.mean_drift = combine(self.mean_drift, step, clients / self.population)
        return combine(merged, self.mean_drift)

    def server_state(self) -> dict[str, Any]:
        """The mean drift."""
        return {"mean_drift": dict(self.mean_drift)}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.mean_drift = self.drift.beside(state["mean_drift"])
