"""Agnostic federated learning: the weights of clients grow where the model's loss is large."""

from collections.abc import Sequence

import torch
from pydantic import NonNegativeFloat

from fedexp.aggregators.average import Average
from fedexp.aggregators.start_loss import ReportsStartLoss
from fedexp.config.compatibility.traits import DRAWS_BY_SIZE, OTHER_WEIGHTS
from fedexp.contract import PartUpdate, Setting, Tensors
from fedexp.core.simplex_projection import nearest_in_simplex


class Agnostic(ReportsStartLoss, Average):
    """AFL, agnostic federated learning: trains for the worst mixture of the clients' losses.

    The objective is $min_w max_lambda sum_k lambda_k F_k$ (Mohri, Sivek, Suresh, ICML 2019,
    Stochastic-AFL). F_k is the mean cross-entropy of the received model over client k's training
    data, in eval mode. $lambda_k >= 0$ is the weight of client k, for the N clients that have data.
    The weights sum to 1, and at first each is $1/N$. In each round the average of the clients'
    models is weighted by lambda, and then

        $lambda <-$ the nearest point of the simplex to $lambda + lr g$.

    The simplex is the set of all vectors with entries >= 0 and sum 1. In g, g_k is $(N / K) F_k$
    for a client of the cohort of K clients and 0 for any other client. If the cohort is drawn
    uniformly, the expected value of g is the gradient of $sum_k lambda_k F_k$ with respect to
    lambda. If all clients take part in each round, g is this gradient.

    By our own choice, this class differs from the paper in three points. A client's step is local
    training, not one gradient. The weights lambda_k of a cohort are divided by their sum. The
    result is the last model, not the mean of the models of all rounds. If lambda_k is 0 for every
    client of the cohort, the model does not change, but lambda does.

    Metric: ``aggregator/largest_weight``, the largest lambda_k after the round.

    Args:
        lr: the step size of lambda. With 0 the method is FedAvg with uniform weights.
    """

    saved = ("mixture",)
    traits = frozenset({OTHER_WEIGHTS})
    discourages = {
        DRAWS_BY_SIZE: "aggregator=agnostic: the weights of large clients, which this sampler "
        "draws more often, rise too fast; use sampler=random"
    }

    def __init__(self, lr: NonNegativeFloat) -> None:
        Average.__init__(self, "uniform")
        self.lr = lr

    def setup(self, setting: Setting) -> None:
        """Give all clients that have data the same weight lambda_k."""
        has_data = (setting.clients.sizes > 0).cpu()
        self.eligible = has_data.nonzero().flatten()
        self.mixture = has_data.double() / len(self.eligible)

    def factor(self, update: PartUpdate) -> float:
        """The client's weight lambda_k times how often it was drawn for the cohort."""
        return update.draws * self.mixture[update.client].item()

    def merge(self, current: Tensors) -> Tensors:
        """The average of the clients' models; a copy of ``current`` if lambda_k is 0 for all.

        A copy, because the server skips the round if it gets ``current`` itself. Then ``aggregate``
        would not be called, and a weight of 0 could stay 0 whatever the client's loss is.
        """
        merged = super().merge(current)
        return dict(current) if merged is current else merged

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Move the client weights lambda along their gradient; project them onto the simplex."""
        scale = self.lr * len(self.eligible) / sum(update.draws for update in updates)
        moved = self.mixture.clone()
        for update in updates:
            moved[update.client] += scale * update.draws * update.extras["loss"].item()
        mixture = torch.zeros_like(moved)
        mixture[self.eligible] = nearest_in_simplex(moved[self.eligible])
        self.mixture = mixture

    def metrics(self) -> dict[str, float]:
        """The largest client weight lambda_k."""
        return {"aggregator/largest_weight": self.mixture.max().item()}
