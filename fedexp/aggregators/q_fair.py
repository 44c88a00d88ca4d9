"""q-FedAvg: clients on which the model's loss is large weigh more, for fairness."""

import math

import torch
from pydantic import NonNegativeFloat, PositiveFloat

from fedexp.aggregators.server_step import ServerStep
from fedexp.aggregators.start_loss import ReportsStartLoss
from fedexp.contract import Client, Memory, PartUpdate, Tensors

_EPS = 1e-10
"""Added to each loss, as in the authors' code: a negative power of 0 is infinite."""


class QFair(ReportsStartLoss, ServerStep):
    """q-FedAvg (Li et al., ICLR 2020, Alg. 2): minimises $sum_k p_k F_k^(q+1) / (q+1)$.

    F_k is the mean cross-entropy of the received model over the client's training data, in eval
    mode, before local training. L (``lipschitz``) says how fast the gradient changes. With the
    received weights w, the trained weights w_k and the step $D_k = w_k - w$, Alg. 2 is

        $Delta_k = -L F_k^q D_k$,
        $h_k = q F_k^(q-1) L^2 ||D_k||^2 + L F_k^q$,
        $w <- w - sum_k Delta_k / sum_k h_k$.

    This update equals $w + eta_g D$: D is the average of the steps weighted by F_k^q, and

        $eta_g = sum_k F_k^q / (sum_k F_k^q + q L sum_k F_k^(q-1) ||D_k||^2) <= 1$.

    With $q = 0$ the result equals that of FedAvg with uniform weights, to the bit. p_k is client
    k's share of all samples. It does not appear in the update, because the paper's sampler draws
    client k with probability p_k (``sampler=weighted``). Only parameters take the step; buffers are
    averaged with the weights F_k^q.

    A client sends F_k. If ``lipschitz`` is None, it also sends its learning rate.

    Metric: ``aggregator/step_size``, eta_g.

    Args:
        q: 0 gives all clients the same weight; with a larger q, large losses count more.
        lipschitz: L, how fast the gradient changes. If None, L = 1 / learning rate of the round, as
            in the paper. This assumes SGD without momentum, as in the paper; momentum makes local
            steps longer. Many local steps make ||D_k|| large and eta_g small. Then a smaller L
            trains faster.
    """

    unread_if = {"lipschitz": {"q": (0,)}}

    def __init__(self, q: NonNegativeFloat, lipschitz: PositiveFloat | None) -> None:
        ServerStep.__init__(self, "uniform")
        self.q, self.lipschitz = q, lipschitz

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The client's loss F_k before training, and its learning rate if ``lipschitz`` is None."""
        sent = super().report(client, memory)
        if self.lipschitz is None:
            sent["learning_rate"] = torch.tensor(client.learning_rate)
        return sent

    def factor(self, update: PartUpdate) -> float:
        """The update's weight: F_k^q times how often the client was drawn for the cohort.

        F_k is the client's loss before training.
        """
        return update.draws * _power(update, self.q)

    def summand(self, update: PartUpdate, current: Tensors) -> float:
        """The client's term in the step size eta_g, times how often the client was drawn.

        The term is q L F_k^(q-1) ||D_k||^2, with the client's loss F_k and step D_k.
        """
        lipschitz = self.lipschitz or 1 / update.extras["learning_rate"].item()
        factor = update.draws * self.q * lipschitz * _power(update, self.q - 1)
        return factor * self.square(update, current)

    def step_size(self, total: float, step: Tensors) -> float:
        """The server's step size eta_g, at most 1."""
        return self.total / (self.total + total)


def _power(update: PartUpdate, exponent: float) -> float:
    """A power of the client's loss F_k before training plus ``_EPS``; infinite if it overflows."""
    try:
        return math.pow(update.extras["loss"].item() + _EPS, exponent)
    except OverflowError:
        return math.inf  # the merged model is not finite, and the server refuses it
