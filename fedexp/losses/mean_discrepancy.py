"""The distance between the distributions of the trained and the received model's features."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import COMPARES_WITH_MODEL
from fedexp.contract import Forward, Loss, Outputs
from fedexp.core.forward import mean_over

Variances = Annotated[list[PositiveFloat], Field(min_length=1)]


def mean_discrepancy(
    x: Tensor, y: Tensor, variances: list[float], real: Tensor | None = None
) -> Tensor:
    """The squared maximum mean discrepancy (MMD) of two samples, a scalar.

    It is the squared distance between the samples' means in the space of the kernel
    $k(a, b) = sum_h exp(-||a - b||^2 / (2 h))$, a sum over the variances h.

    Args:
        x: [B, d].
        y: [B, d].
        variances: h, one for each term of the kernel.
        real: [B], 1 for a row of both samples, 0 for padding; None if there is no padding.
    """

    def mean(a: Tensor, b: Tensor) -> Tensor:
        """The mean of the kernel over all pairs of a row of a and a row of b."""
        squares = a.square().sum(dim=1).unsqueeze(1) + b.square().sum(dim=1) - 2 * a @ b.T
        kernel = torch.stack([(-0.5 / h * squares).exp() for h in variances]).sum(dim=0)
        return mean_over(mean_over(kernel, real), real)

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


class MeanDiscrepancy(Loss):
    """Cross-entropy + lam * ``mean_discrepancy`` of the features and the received model's features.

    A batch's features z [B, d] are one sample; the features that the received model has for the
    batch are the other. FedCP (Zhang et al., KDD 2023) uses the term, so that the features stay
    useful for a head that other clients have trained. In the released code the received model is in
    train mode, and here in eval mode.

    Args:
        lam: weight of the second term.
        variances: the variances of the kernel's terms.
    """

    unread_if = {"variances": {"lam": (0,)}}
    takes_only_merged = True
    traits = frozenset({COMPARES_WITH_MODEL})
    reference_models = ("global",)

    def __init__(self, lam: NonNegativeFloat, variances: Variances) -> None:
        super().__init__()
        self.lam, self.variances = lam, list(variances)

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        labels = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        received = references["global"].z
        distance = mean_discrepancy(batch.z, received, self.variances, batch.real)
        return batch.mean(labels) + self.lam * distance
