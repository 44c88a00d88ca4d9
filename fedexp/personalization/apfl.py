"""APFL: a client's personal model is a mixture of its own model and the shared model."""

import torch
from pydantic import PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import MIXED_MODEL, MIXES_OWN_MODEL
from fedexp.config.schema import Share
from fedexp.contract import Client, Memory, PartMessage, Setting, Tensors
from fedexp.personalization.own_model import OwnModel, mixture, own_model, rate_of_round


class APFL(OwnModel):
    """The personal model is the mixture $alpha v + (1 - alpha) w$ (Deng et al., 2020, Alg. 1).

    w is the client's local copy of the shared model. v is the client's own model, which is never
    sent. ``gradient=mixture`` trains w and v. In the client's first round v starts from the
    received global model. ``local.grad_clip`` clips by the norm of the gradients of w and v
    together.

    The released code differs in these points. It mixes the outputs of v and w, not their weights,
    and it computes the gradient for v after the step of w. It adapts alpha after the first step of
    a round. In the formula for alpha it replaces grad f by $alpha g_v + (1 - alpha) g_w$, where g_v
    and g_w are the gradients of the mixture's loss with respect to v and w, and it adds 0.02 alpha
    to the scalar product.

    Args:
        alpha: the initial share of v.
        adaptive: whether each client adapts alpha at the start of its rounds by Eq. 10:
            alpha <- alpha - eta <v - w, grad f(alpha v + (1 - alpha) w)>, then clipped to [0, 1].
            f is the client's loss on the round's first batch, and eta is the learning rate.
        batch_size: number of samples in this first batch.
    """

    unread_if = {"batch_size": {"adaptive": (False,)}}
    takes_only_merged = True
    traits = OwnModel.traits | {MIXES_OWN_MODEL}
    needs = {MIXED_MODEL: "personalization=apfl: trains nothing by itself; use gradient=mixture"}
    alpha: Tensor

    def __init__(self, alpha: Share, adaptive: bool, batch_size: PositiveInt) -> None:
        super().__init__()
        self.first_alpha, self.adaptive, self.batch_size = alpha, adaptive, batch_size

    def setup(self, setting: Setting) -> None:
        """Make a persistent buffer for alpha, the share of the client's own model v in the mixture.

        ``gradient=mixture`` reads this buffer.
        """
        self.register_buffer("alpha", torch.tensor(self.first_alpha))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the mixture's share alpha. In the client's first round also set its own model v."""
        if "alpha" not in memory:
            self.start_from(client, message.weights)
            memory["alpha"] = torch.full_like(self.alpha, self.first_alpha)
        elif self.adaptive:
            memory["alpha"] = self._adapted(client, memory["alpha"])
        self.alpha.copy_(memory["alpha"])

    def personal_weights(self, local: Tensors) -> Tensors:
        """The personal model: the mixture of the own model v and the trained shared model w."""
        return mixture(local, self.alpha)

    def _adapted(self, client: Client, alpha: Tensor) -> Tensor:
        """The mixture's share alpha after one gradient step (Eq. 10), a scalar."""
        weights = client.weights
        batch = next(iter(client.data.local_batches(client.round, self.batch_size)))
        _, g = client.batch_gradient(batch, mixture(weights, alpha))
        slopes = [(v - weights[name]).mul(g[name]).sum() for name, v in own_model(weights).items()]
        return (alpha - rate_of_round(client) * torch.stack(slopes).sum()).clamp(0, 1)
