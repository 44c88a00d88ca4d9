"""Ditto: a model of its own for each client, on a spring to the global one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import Message
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Personalization, Phase
from fedexp.regularizers.proximal import Proximal


class Ditto(Personalization):
    """v <- v - eta (grad F_k(v) + lam (v - w^t)), beside the federation (Li et al., ICML 2021).

    The shared model is trained as if v were not there; v is trained whenever the client is, for as
    many epochs, and goes on where it stopped. At lam = 0 it is what the client would have learnt
    for itself.

    Args:
        lam: the spring's strength.
    """

    def __init__(self, lam: NonNegativeFloat) -> None:
        super().__init__()
        self.spring = Proximal(lam)

    def setup(self, setting: Setting) -> None:
        """Room for w^t."""
        self.spring.setup(setting)

    def personal_phases(self, epochs: int) -> Sequence[Phase]:
        """All of v at once."""
        return (Phase(epochs),)

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """The spring's other end is w^t."""
        if client.is_personal:
            self.spring.anchors.set(message.weights)

    def pull(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor:
        """The spring, a scalar."""
        penalty: Tensor = self.spring(parameters)
        return penalty
