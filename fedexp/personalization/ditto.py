"""Ditto: a separate personal model for each client, regularized towards the global model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.contract import Client, Memory, PartMessage, Personalization, Phase, Setting, Tensors
from fedexp.regularizers.proximal import Proximal


class Ditto(Personalization):
    """Each client also trains a separate personal model, pulled to the shared model (Ditto).

    v is the client's personal model, u is the model that v is pulled to, and F_k is the client's
    loss. A step is $v <- v - eta (grad F_k(v) + lam (v - u))$ with the learning rate eta (Li et
    al., ICML 2021, Alg. 1). v does not affect the shared model. In each of the client's rounds, v
    is trained further, for as many epochs as the shared model. With $lam = 0$, v is trained only on
    the client's data, without a pull.

    Args:
        lam: strength of the proximal term.
        anchor: the choice of u. "global" is the received global model w^t, as in the paper. "local"
            is the client's shared model after its local training in this round.
        optimizer: the optimizer of v. "local" is the configured local optimizer. "plain_sgd" is SGD
            with the same learning rate, without momentum and weight decay.
        clip_pull: whether ``local.grad_clip`` clips the sum grad F_k(v) + lam (v - u). If false, it
            clips only grad F_k(v).
    """

    unread_if = {"anchor": {"lam": (0,)}, "clip_pull": {"lam": (0,), "local.grad_clip": (None,)}}
    takes_only_merged = True
    penalty: _Pull

    def __init__(
        self,
        lam: NonNegativeFloat,
        anchor: Literal["global", "local"],
        optimizer: Literal["local", "plain_sgd"],
        clip_pull: bool,
    ) -> None:
        super().__init__()
        self.penalty = _Pull(lam, clip_pull)
        self._anchor_is_local = anchor == "local"
        self._plain_sgd = optimizer == "plain_sgd"

    def setup(self, setting: Setting) -> None:
        """Make buffers for u, the model that the personal model is pulled to."""
        self.penalty.setup(setting)

    def personal_phases(self, epochs: float) -> Sequence[Phase]:
        """One phase that trains all weights of the personal model."""
        return (Phase(epochs, plain_sgd=self._plain_sgd),)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Before the personal model is trained, set u, the model that it is pulled to."""
        if client.is_personal:
            self.penalty.anchors.set(memory if self._anchor_is_local else message.weights)
            memory.clear()

    def report(self, client: Client, memory: Memory) -> Tensors:
        """With the anchor "local", store the trained shared model.

        The personal model, which is trained next, is pulled to it.
        """
        if self._anchor_is_local:
            memory.update({name: client.weights[name].clone() for name in self.penalty.anchors})
        return {}


class _Pull(Proximal):
    """The penalty (lam / 2) ||v - u||^2, which pulls the personal model v to the anchor u.

    If ``clipped`` is false, the gradient of the penalty is added after clipping.
    """

    def __init__(self, lam: float, clipped: bool) -> None:
        super().__init__(lam)
        self._clipped = clipped

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar. It is 0 if ``unclipped_gradient`` returns the gradient instead."""
        return super().forward(parameters) if self._clipped else 0.0

    def unclipped_gradient(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
        """The penalty's gradient lam (v - u) for each parameter. Empty if ``clipped`` is true."""
        if self._clipped:
            return {}
        return {name: self.mu * (value - self.anchors[name]) for name, value in parameters}
