"""Agnostic federated learning: the weights of clients grow where the model's loss is large."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.aggregators.average import Average
from fedexp.aggregators.start_loss import ReportsStartLoss
from fedexp.compatibility.traits import DRAWS_BY_SIZE
from fedexp.core.messages import PartUpdate
from fedexp.core.part import Setting


def on_simplex(point: Tensor) -> Tensor:
    """The nearest point [n] with entries >= 0 and sum 1: max(point - theta, 0) for some theta."""
    descending = point.sort(descending=True).values
    excess = (descending.cumsum(dim=0) - 1) / torch.arange(1, len(point) + 1)
    theta = excess[descending > excess][-1]
    return (point - theta).clamp(min=0)


class Agnostic(ReportsStartLoss, Average):
    """AFL (Mohri, Sivek, Suresh, ICML 2019, Stochastic-AFL): min_w max_lambda sum_k lambda_k F_k.

    lambda is any mixture of the N clients that have data, at first 1/N each. F_k is the mean
    cross-entropy of the received model over client k's training data, in eval mode. In each round
    the average of the clients' weights is weighted by lambda, and then

        lambda <- the nearest point of the simplex to lambda + lr g.

    g is the paper's stochastic gradient for a cohort of K clients, drawn uniformly: g_k = (N / K)
    F_k in the cohort and 0 elsewhere. With all clients in each round it is the gradient.

    Three things are as in later implementations, not as in the paper. A client's step is local
    training, not one gradient. The weights lambda_k of a cohort are divided by their sum. The last
    model is the result, not the mean over all rounds. If the whole cohort has lambda = 0, the model
    does not change.

    Metric: ``aggregator/largest_weight``, the largest lambda_k after the round.

    Args:
        lr: the step size of lambda; 0 is FedAvg with uniform weights.
    """

    discourages = MappingProxyType(
        {
            DRAWS_BY_SIZE: "aggregator=agnostic: the weights of large clients, which this sampler "
            "draws more often, rise too fast; use sampler=random"
        }
    )

    def __init__(self, lr: NonNegativeFloat) -> None:
        Average.__init__(self, "uniform")
        self.lr = lr

    def setup(self, setting: Setting) -> None:
        """Give all clients that have data the same lambda."""
        has_data = (setting.client_sizes > 0).cpu()
        self.eligible = has_data.nonzero().flatten()
        self.mixture = has_data.double() / len(self.eligible)

    def factor(self, update: PartUpdate) -> float:
        """lambda_k times the number of the client's draws."""
        return update.draws * self.mixture[update.client].item()

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Take the step of lambda."""
        scale = self.lr * len(self.eligible) / sum(update.draws for update in updates)
        moved = self.mixture.clone()
        for update in updates:
            moved[update.client] += scale * update.draws * update.extras["loss"].item()
        mixture = torch.zeros_like(moved)
        mixture[self.eligible] = on_simplex(moved[self.eligible])
        self.mixture = mixture

    def metrics(self) -> dict[str, float]:
        """The largest weight."""
        return {"aggregator/largest_weight": self.mixture.max().item()}

    def server_state(self) -> dict[str, Any]:
        """lambda, [number of clients]."""
        return {"mixture": self.mixture}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.mixture = state["mixture"]
