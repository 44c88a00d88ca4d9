"""The focal loss."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.sockets import Loss


class Focal(Loss):
    """-(1 - p)^gamma log p, p the probability of the target (Lin et al., ICCV 2017, Eq. 4).

    Args:
        gamma: how much less samples count that the model is sure of; at least 1.
    """

    def __init__(self, gamma: Annotated[float, Field(ge=1)]) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, batch: Forward) -> Tensor:
        """The mean over the batch, a scalar."""
        surprise = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        sureness = (-surprise).exp()
        return batch.mean((1 - sureness) ** self.gamma * surprise)
