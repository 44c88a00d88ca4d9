"""The forward pass of backbone and head, and means over a batch's real samples."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Outputs(NamedTuple):
    """A model's outputs on one batch: features z [B, d], logits [B, C]."""

    z: Tensor
    logits: Tensor


def outputs(backbone: nn.Module, head: nn.Module, inputs: Tensor) -> Outputs:
    """Features and logits of ``inputs`` [B, ...]."""
    return classify(head, backbone(inputs))


def classify(head: nn.Module, z: Tensor) -> Outputs:
    """Features and logits, given the backbone's result ``z`` [B, d].

    Only the backbone runs in mixed precision, as it takes most of the time: heads compute with unit
    vectors and small angles, for which 16 bits are too few.
    """
    with full_precision(z):
        z = at_least_float32(z)
        return Outputs(z, head(z))


def at_least_float32(tensor: Tensor) -> Tensor:
    """``tensor`` as it is, or as float32 if it has fewer bits."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def full_precision(tensor: Tensor) -> torch.autocast:
    """A context without mixed precision on the device of ``tensor``."""
    return torch.autocast(tensor.device.type, enabled=False)


def features_and_levels(
    backbone: nn.Module, inputs: Tensor, with_levels: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The backbone's result [B, d], and ``Forward.levels``: none, unless they are asked for."""
    if not with_levels:
        return backbone(inputs), ()
    forward_levels = getattr(backbone, "forward_levels", None)
    if forward_levels is None:
        z = backbone(inputs)
        return z, (at_least_float32(z),)
    z, levels = forward_levels(inputs)
    return z, tuple(map(at_least_float32, levels))


class Forward(NamedTuple):
    """One batch's forward pass: features z [B, d], logits [B, C], targets [B].

    Where each token of a sequence has a target, B counts tokens (``core.token_rows``).

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
