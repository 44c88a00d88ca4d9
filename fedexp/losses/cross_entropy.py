"""Cross-entropy."""

import torch.nn.functional as F
from torch import Tensor

from fedexp.contract import Forward, Loss


class CrossEntropy(Loss):
    """The cross-entropy $-log softmax(logits)[target]$, mean over the batch."""

    takes_tokens = True

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        return batch.mean(F.cross_entropy(batch.logits, batch.targets, reduction="none"))
