"""Focal loss: cross-entropy that gives less weight to samples that the model already fits."""

import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.contract import Forward, Loss


class Focal(Loss):
    """The focal loss $-(1 - p)^gamma log p$, mean over the batch (Lin et al., ICCV 2017, Eq. 4).

    p is the softmax probability of the label. In the paper p is the probability of a detector with
    two classes, and the authors also weight these classes by a constant alpha. Here there is no
    alpha.

    Args:
        gamma: with 0 the loss is cross-entropy; larger values give well-fitted samples less weight.
    """

    takes_tokens = True

    def __init__(self, gamma: NonNegativeFloat) -> None:
        super().__init__()
        self.gamma = gamma

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        cross_entropy = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        # expm1 computes 1 - p precisely near p = 1. The clamp avoids the infinite slope of 0^gamma.
        missing = -(-cross_entropy).expm1()
        weight = missing.clamp(min=1e-12) ** self.gamma
        return batch.mean(weight * cross_entropy)
