"""PolyLoss: cross-entropy with a stronger first term of its series."""

import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.sockets import Loss


class Poly(Loss):
    """-log p + epsilon (1 - p), p the probability of the target (Leng et al., ICLR 2022, Poly-1).

    Args:
        epsilon: weight of the added term; 0 is cross-entropy.
    """

    def __init__(self, epsilon: NonNegativeFloat) -> None:
        super().__init__()
        self.epsilon = epsilon

    def forward(self, batch: Forward) -> Tensor:
        """The mean over the batch, a scalar."""
        cross_entropy = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        p = (-cross_entropy).exp()
        return batch.mean(cross_entropy + self.epsilon * (1 - p))
