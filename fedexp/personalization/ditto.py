"""Ditto: a separate personal model for each client, regularized towards the global model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Personalization, Phase
from fedexp.regularizers.proximal import Proximal


class Ditto(Personalization):
    """v <- v - eta (grad F_k(v) + lam (v - u)) (Li et al., ICML 2021, Alg. 1).

    v is the client's personal model, u the model that it is pulled to, F_k the client's loss. v
    does not affect the shared model. In each of the client's rounds v is trained further, for as
    many epochs as the shared model. With lam = 0 this is purely local training.

    Args:
        lam: strength of the proximal term.
        anchor: u. "global" is the received global model w^t, as in the paper; "local" is the
            client's shared model after its local training in this round.
        optimizer: the optimizer of v. "local" is the configured local optimizer; "plain_sgd" is SGD
            with the same learning rate, without momentum and weight decay.
        clip_pull: whether ``local.grad_clip`` clips grad F_k(v) + lam (v - u). If not, it clips
            only grad F_k(v).
    """

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
        """Make buffers for u."""
        self.penalty.setup(setting)

    def personal_phases(self, epochs: float) -> Sequence[Phase]:
        """One phase that trains the whole of v."""
        return (Phase(epochs, plain_sgd=self._plain_sgd),)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set u before v is trained."""
        if client.is_personal:
            self.penalty.anchors.set(memory if self._anchor_is_local else message.weights)
            memory.clear()

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Keep the trained shared model until ``begin`` of the personal model in this round."""
        if self._anchor_is_local:
            memory.update({name: client.weights[name].clone() for name in self.penalty.anchors})
        return {}


class _Pull(Proximal):
    """(lam / 2) ||v - u||^2. Its gradient is added after clipping, unless ``clipped``."""

    def __init__(self, lam: float, clipped: bool) -> None:
        super().__init__(lam)
        self._clipped = clipped

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar; 0 if ``unclipped_gradient`` has its gradient."""
        return super().forward(parameters) if self._clipped else 0.0

    def unclipped_gradient(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensors:
        """lam (v - u), unless ``clipped``."""
        if self._clipped:
            return {}
        return {name: self.mu * (value - self.anchors[name]) for name, value in parameters}
