"""A network at the server from whose outputs clients get models; the models' changes train it."""

import math
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn


class ServerNetwork:
    """A network of the server, and the SGD that trains it.

    This class is not an ``nn.Module``, because the client's model must not contain the network.

    Args:
        network: the network.
        lr: learning rate.
        momentum: momentum of SGD.
        weight_decay: L2 penalty on the network.
        clip: the largest norm of a step's gradient.
    """

    def __init__(
        self,
        network: nn.Module,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float = math.inf,
    ) -> None:
        self.network, self.clip = network, clip
        self.optimizer = torch.optim.SGD(
            network.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay
        )

    def to(self, device: torch.device) -> None:
        """Move the network and the optimizer's state to ``device``."""
        if next(self.network.parameters()).device != device:
            self.network.to(device)
            self.optimizer.load_state_dict(self.optimizer.state_dict())  # follows the network

    def descend(self, outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Take one step, given the loss's gradient for each output of the network.

        The gradient for the network's parameters is the vector-Jacobian product of the outputs with
        ``gradients``.
        """
        self.optimizer.zero_grad()
        torch.autograd.backward(outputs, gradients)
        if math.isfinite(self.clip):
            nn.utils.clip_grad_norm_(self.network.parameters(), self.clip)
        self.optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """The network's parameters and the optimizer's state."""
        return deepcopy(
            {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of ``state_dict``."""
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
