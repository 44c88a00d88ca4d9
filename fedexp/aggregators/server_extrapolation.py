"""FedExP: the server takes a longer step when the clients' steps disagree."""

from pydantic import PositiveFloat

from fedexp.aggregators.average import Weighting
from fedexp.aggregators.clipping import norm_of
from fedexp.aggregators.server_step import ServerStep
from fedexp.core.messages import PartUpdate, Tensors


class ServerExtrapolation(ServerStep):
    """Multiplies the average step by a step size that grows when the clients' steps disagree.

    The update is $w <- w + eta_g D$ (FedExP; Jhunjhunwala et al., ICLR 2023, Alg. 1).
    $D_i = w_i - w$ is the step of client i, and p_i is its share in the average over the cohort of
    M clients. $D = sum_i p_i D_i$ is the average step. The server step size is

        $eta_g = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + epsilon)))$.

    With $p_i = 1/M$ the fraction is $sum_i ||D_i||^2 / (2 M (||D||^2 + epsilon))$. Opposed steps
    give a large eta_g. Equal steps give $eta_g = 1$, as in FedAvg. Only parameters have steps and
    norms; buffers are averaged.

    Metric: ``aggregator/step_size``, eta_g.

    Args:
        weighting: with ``samples`` p_i is proportional to the number of samples n_i; with
            ``uniform`` all p_i are equal.
        epsilon: keeps eta_g finite if the steps cancel. The authors' released code uses M epsilon
            instead of epsilon, and multiplies epsilon by 0.998^2 in each round.
    """

    def __init__(self, weighting: Weighting, epsilon: PositiveFloat) -> None:
        super().__init__(weighting)
        self.epsilon = epsilon

    def summand(self, update: PartUpdate, current: Tensors) -> float:
        """The client's term a_i ||D_i||^2 in the step size.

        D_i is the client's step. a_i is its number of samples, or 1 with uniform weights.
        """
        return self.factor(update) * self.square(update, current)

    def step_size(self, total: float, step: Tensors) -> float:
        """The server's step size eta_g, at least 1."""
        return max(1.0, total / self.total / (2 * (norm_of(step) ** 2 + self.epsilon)))
