"""Cross-entropy against smoothed labels, which give every class some probability."""

from typing import Annotated

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fedexp.config.compatibility.traits import LEAVES_OUT_CLASSES
from fedexp.contract import Forward, Loss


class LabelSmoothing(Loss):
    """Cross-entropy against smoothed labels (Szegedy et al., CVPR 2016, Section 7).

    The target probabilities are $(1 - eps)$ times the one-hot label, plus $eps / C$ for each of the
    C classes.

    Args:
        eps: the probability that is spread evenly over all C classes. With 0 the loss is
            cross-entropy.
    """

    takes_tokens = True
    forbids = {
        LEAVES_OUT_CLASSES: "{other}: gives absent classes the probability 0, and "
        "loss=label_smoothing gives every class a positive one; use another loss or head"
    }

    def __init__(self, eps: Annotated[float, Field(ge=0, lt=1)]) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        smoothed = F.cross_entropy(
            batch.logits, batch.targets, reduction="none", label_smoothing=self.eps
        )
        return batch.mean(smoothed)
