"""SCAFFOLD: each client's gradients are corrected by how they differ from everybody's."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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

LOGGER = logging.getLogger(__name__)


class ControlVariates(Regularizer):
    """<c - c_k, w> over the trained shared parameters (Karimireddy et al., ICML 2020, Alg. 1).

    It turns a local gradient g into g - c_k + c. The client's control variate c_k estimates its own
    gradient, the server's c the population's. After training (option II)

        c_k <- c_k - c + (w^t - w_k) / (steps * learning rate),

    the client reports by how much that changed, and c moves by the sum of these changes over N, so
    that it stays the mean of all c_k; N counts the clients that have data. All start from zero: in
    the first round the server sends none. The server's learning rate is the aggregator's; with the
    mean of the cohort, ``aggregator=uniform``, it is the paper's 1.

    At rest c is zero, so that ``weighting``, not the aggregator, says whose optimum that is: of the
    mean of all clients' objectives (``uniform``, paper), or of their mean weighted by samples, as c
    then is (``samples``). The aggregator should weigh alike.

    That c_k is a mean of gradients is an identity of plain SGD. Momentum m makes the last term up
    to 1 / (1 - m) times as long, with which the recursion diverges, and an adaptive step is no
    gradient: both are warned of, once. Weight decay counts as part of the gradient, and a clipped
    gradient as it was clipped. ``steps`` are those of the whole round, also for a parameter that a
    personalization trains in one of several phases: its variates are then too short.

    Args:
        weighting: whether all clients count the same in c, or by their samples.
    """

    summed = True

    def __init__(self, weighting: Literal["uniform", "samples"]) -> None:
        super().__init__()
        self.weighting = weighting

    def setup(self, setting: Setting) -> None:
        """Room for c - c_k; the server's c is not there yet, which is zero."""
        self.correction = Anchors(shared_parameters(setting))
        self.population = population(setting)
        self.samples = int(setting.client_sizes.sum())
        self.mean: Tensors = {}
        self._warned = False

    def broadcast(self, round: int) -> Tensors:
        """The server's c, from the second round."""
        return prefixed("variate", self.mean)

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """How this client's gradients are corrected."""
        self._message = message
        self.correction.fill(combine(self._sent(), with_prefix("variate", memory), -1))
        if not self._warned:
            self._warned = True
            _warn_unless_plain_sgd(client.optimizer_for([nn.Parameter(torch.zeros(1))]))

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The linear term, a scalar."""
        return total(
            [(self.correction[n] * w).sum() for n, w in parameters if n in self.correction]
        )

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The change of c_k, as much as it counts."""
        start, weights = self._message.weights, client.weights
        distance = client.steps * client.learning_rate
        step = {name: (start[name] - weights[name]) / distance for name in self.correction}
        change = prefixed("variate", combine(step, self._expected(memory), -1))
        memory.update(combine(memory, change))
        if self.weighting == "uniform":
            return change
        share = client.data.num_samples * self.population / self.samples
        return {name: share * value for name, value in change.items()}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Move the server's c; the weights are what the aggregator made of them."""
        changes = with_prefix("variate", sums)
        steps = {n: (s / self.population).to(current[n].dtype) for n, s in changes.items()}
        self.mean = combine(self.mean, steps)
        return merged

    def server_state(self) -> dict[str, Any]:
        """The server's c."""
        return {"mean": dict(self.mean)}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.mean = self.correction.beside(state["mean"])

    def _sent(self) -> Tensors:
        """The server's c as it came."""
        return with_prefix("variate", self._message.extras.get("regularizer", {}))

    def _expected(self, memory: Memory) -> Tensors:
        """The mean step at which c_k stays as it is."""
        return self._sent()


def _warn_unless_plain_sgd(optimizer: Optimizer) -> None:
    if not isinstance(optimizer, torch.optim.SGD):
        name = type(optimizer).__name__.lower()
        LOGGER.warning("optimizer=%s: control variates are meant for plain SGD", name)
    elif momentum := optimizer.defaults["momentum"]:
        LOGGER.warning(
            "optimizer.momentum=%g: control variates may diverge with momentum; 0 is safe", momentum
        )
