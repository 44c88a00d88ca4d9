"""FedAMP: each client gets a mean of all clients' models, in which similar models weigh more."""

import logging
import math

import torch
from pydantic import PositiveFloat
from torch import Tensor

from fedexp.contract import Setting, Tensors
from fedexp.core.named_tensors import floats
from fedexp.personalization.client_models import MixesModels

LOGGER = logging.getLogger(__name__)


class FedAMP(MixesModels):
    """Sends each client its own mean of all models (Huang et al., AAAI 2021, Algorithm 1).

    The server stores the latest model w_i of each client. It sends client i the cloud model

        $u_i = (1 - sum_j xi_ij) w_i + sum_j xi_ij w_j$, $xi_ij = alpha A'(||w_i - w_j||^2)$,

    where j runs over the other clients. $A(x) = 1 - exp(-x / sigma)$, and A' is its derivative. So
    xi_ij is $alpha exp(-||w_i - w_j||^2 / sigma) / sigma$. The client starts from u_i and minimises
    $F_i(w) + lambda / (2 alpha) ||w - u_i||^2$, where F_i is its loss. Use ``regularizer=proximal``
    with $mu = lambda / alpha$ for this. The gradient of $A(||w_i - w_j||^2)$ has a factor 2, which
    is left out, as in other implementations. The formula of u_i agrees with three of them. We found
    neither the paper's text nor code of its authors. The start at u_i and the constant alpha are
    our choices: some implementations start from w_i, and some lower alpha during training.
    HeurFedAMP, the paper's variant for deep networks, is not implemented.

    The distance $||w_i - w_j||$ is over trained parameters only. Float buffers are combined like
    parameters. Integer buffers of u_i are copied from w_i. Sums are computed in float64.

    In the paper all clients train in all rounds. Here a client that has not trained yet has no
    model at the server. It gets the aggregator's global weights, and it does not count in the u_i
    of other clients. The aggregator has no other use, and no global model is evaluated.

    The server needs memory for N models; models that exceed ``clients.ram_gib`` are on disk.
    Computing the message to one client takes about N D operations, where D is the size of the
    model.

    Args:
        sigma: the squared distance between two models at which xi_ij is 1/e of its maximum.
        alpha: step size of the message passing. With alpha <= sigma / (N - 1) the weight of w_i in
            u_i is never negative.
    """

    def __init__(self, sigma: PositiveFloat, alpha: PositiveFloat) -> None:
        super().__init__()
        self.sigma, self.alpha = sigma, alpha

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' models w_i.

        Warn if a client's own model may have a negative weight in its cloud model u_i.
        """
        super().setup(setting)
        self._trained = sorted(setting.model.parameters)
        others = setting.clients.num_with_data - 1
        if others * self.alpha > self.sigma:
            LOGGER.warning(
                "personalization.alpha=%g: a client's own model may get a negative weight; use at "
                "most personalization.sigma / %d = %.3g",
                self.alpha,
                others,
                self.sigma / others,
            )

    def mixture(self, client: int, own: Tensors) -> Tensors:
        """Compute the float weights of the client's cloud model in float64.

        Only one other client's model at a time is in memory.
        """
        own = {name: w.double() for name, w in floats(own).items()}
        cloud = {name: w.clone() for name, w in own.items()}
        for other in self._stored:
            if other == client:
                continue
            model = self._stored[other]
            steps = {name: model[name].double() - w for name, w in own.items()}
            attention = self.alpha * attention_slope(self._square(steps), self.sigma)
            for name, step in steps.items():
                cloud[name].add_(step, alpha=attention)
        return cloud

    def _square(self, steps: Tensors) -> float:
        """The squared norm of the differences ``steps``, over trained parameters only."""
        squares: list[Tensor] = [steps[n].square().sum() for n in self._trained if n in steps]
        return torch.stack(squares).sum().item() if squares else 0.0


def attention_slope(square: float, sigma: float) -> float:
    """The slope of the attention, A'(x) = exp(-x / sigma) / sigma, at a squared distance x."""
    return math.exp(-square / sigma) / sigma
