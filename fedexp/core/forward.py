"""One batch's forward pass, and means over its real samples."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Forward(NamedTuple):
    """One batch's forward pass: features z [B, d], logits [B, C], targets [B].

    ``real`` [B] is 1 for a sample and 0 for padding, so that batches of several lengths can be
    stacked; None if all are samples. Take means with ``mean``.

    ``levels`` are the features of the backbone's stages, [B, width of the stage] each, float32, if
    the loss asks for them (``Loss.levels``); otherwise empty.
    ``head`` is the head in training, for a loss that applies it to other features than z.
    ``step`` counts the client's steps in this round from 0, a number or a scalar tensor: with a key
    of the client it keys random draws (``randomness.uniform``).
    """

    z: Tensor
    logits: Tensor
    targets: Tensor
    real: Tensor | None = None
    levels: tuple[Tensor, ...] = ()
    head: Callable[[Tensor], Tensor] | None = None
    step: Tensor | int = 0

    def mean(self, values: Tensor) -> Tensor:
        """Mean of ``values`` [B, ...] over the samples."""
        return mean_over(values, self.real)


def mean_over(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of ``values`` [B, ...] over the first dimension with these weights [B].

    A value without weight may be anything, also infinite; without any weight the mean is 0.
    """
    if weights is None:
        return values.mean(dim=0)
    weights = weights.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
    return (values.where(weights > 0, 0) * weights).sum(dim=0) / weights.sum().clamp(min=1)


@torch.no_grad()
def cross_entropy(logits: Tensor, targets: Tensor, real: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over the samples of a batch, a scalar without gradient.

    ``logits`` [B, C], ``targets`` [B] and ``real`` [B] are as in ``Forward``.
    """
    return mean_over(F.cross_entropy(logits, targets, reduction="none"), real)
