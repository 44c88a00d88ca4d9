"""A personalization whose server sends each client weights and extras of its own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Personalization, Phase


class OwnModels(Personalization):
    """The server keeps one model for the even clients and one for the odd clients.

    The head is private, but the server sends client 0 a head of zeros.
    """

    def setup(self, setting: Setting) -> None:
        self.models: dict[int, Tensors] = {}

    def shared(self, name: str) -> bool:
        return not name.startswith("head.")

    def tuning(self) -> Sequence[Phase]:
        return (Phase(1),)

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        weights = message.weights | self.models.get(client % 2, {})
        if client == 0:
            weights |= {"head.linear.weight": torch.zeros(10, 64)}
        parity = {"parity": torch.tensor(client % 2)}
        return PartMessage(message.round, weights, message.extras | parity)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        assert message.extras["parity"].item() == client.data.client % 2

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        return {name: value.clone() for name, value in weights.items()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        for parity in (0, 1):
            group = [update.extras for update in updates if update.client % 2 == parity]
            if group:
                self.models[parity] = {name: _mean(group, name) for name in group[0]}

    def server_state(self) -> dict[str, Any]:
        return {"models": self.models}

    def load_server_state(self, state: dict[str, Any]) -> None:
        self.models = state["models"]


def _mean(group: Sequence[Tensors], name: str) -> Tensor:
    return torch.stack([tensors[name] for tensors in group]).mean(dim=0)
