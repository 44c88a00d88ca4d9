"""The forward pass of backbone and head, and means over the samples of a padded batch."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Outputs(NamedTuple):
    """A model's outputs on one batch: features z [B, d], logits [B, C]."""

    z: Tensor
    logits: Tensor


def outputs(backbone: nn.Module, head: Callable[[Tensor], Tensor], inputs: Tensor) -> Outputs:
    """Features and logits of a batch ``inputs`` [B, ...]."""
    return classify(head, backbone(inputs))


def classify(head: Callable[[Tensor], Tensor], z: Tensor) -> Outputs:
    """Features and logits, given the backbone's result ``z`` [B, d].

    Only the backbone runs in mixed precision: it takes most of the time. Heads compute with unit
    vectors and small angles, for which 16 bits are too few.
    """
    with full_precision(z):
        z = at_least_float32(z)
        return Outputs(z, head(z))


def at_least_float32(tensor: Tensor) -> Tensor:
    """``tensor``, converted to float32 if it has fewer bits."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def full_precision(tensor: Tensor) -> AbstractContextManager[object]:
    """A context without mixed precision on the device of ``tensor``."""
    device_type = tensor.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def autocast_like(device_type: str) -> Callable[[], torch.autocast]:
    """Return a function that makes contexts with this device type's current mixed precision."""
    enabled = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type)
    return partial(torch.autocast, device_type, dtype, enabled)


def features_and_levels(
    backbone: nn.Module, inputs: Tensor, with_levels: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The backbone's features [B, d], and ``Forward.levels``, empty unless ``with_levels``."""
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

    If each token of a sequence has a target, B counts tokens (``core.token_rows``).

    Attributes:
        z: features [B, d].
        logits: [B, C].
        targets: labels [B].
        real: [B] 1 for a sample and 0 for padding, so that batches of different sizes can be
            stacked; None if all rows are samples. ``mean`` leaves padding out.
        levels: the features of the backbone's stages, [B, width of the stage] each, float32; empty
            unless the loss sets ``Loss.levels``.
        head: features [B, d] -> logits [B, C] of the model that is being trained, for a loss that
            applies it to other features than z. It is the head itself, unless the personalization
            changes the features before the head.
        step: the client's step in this round, from 0, a number or a scalar tensor. Random draws in
            a step follow from this number and a key of the client (``randomness.uniform``).
        in_last_epoch: whether the step belongs to the client's last epoch in this round, a bool or
            a scalar bool tensor.
    """

    z: Tensor
    logits: Tensor
    targets: Tensor
    real: Tensor | None = None
    levels: tuple[Tensor, ...] = ()
    head: Callable[[Tensor], Tensor] | None = None
    step: Tensor | int = 0
    in_last_epoch: Tensor | bool = False

    @property
    def scored(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The arguments for ``cross_entropy``: logits without gradient, targets and ``real``."""
        return self.logits.detach(), self.targets, self.real

    def mean(self, values: Tensor) -> Tensor:
        """Mean of ``values`` [B, ...] over the B samples, without padding."""
        return mean_over(values, self.real)


def is_of_class(labels: Tensor, num_classes: int) -> Tensor:
    """Whether each sample is of each class: bool [B, C], for the samples' classes ``labels`` [B].

    ``F.one_hot`` does not work inside vmap in all supported versions of PyTorch; this does.
    """
    return labels.unsqueeze(1) == torch.arange(num_classes, device=labels.device)


def mean_over(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of ``values`` [B, ...] over the rows with weight 1; ``weights`` [B] are 0 or 1.

    ``weights`` may have further dimensions of ``values``. Without ``weights``, all rows count. A
    row with weight 0 may be infinite or NaN. If all weights are 0, the mean is 0.
    """
    if weights is None:
        return values.mean(dim=0)
    weights = weights.to(values.dtype)
    weights = weights.reshape(*weights.shape, *[1] * (values.dim() - weights.dim()))
    return (values.where(weights > 0, 0) * weights).sum(dim=0) / weights.sum(dim=0).clamp(min=1)


@torch.no_grad()
def cross_entropy(logits: Tensor, targets: Tensor, real: Tensor | None = None) -> Tensor:
    """Mean cross-entropy over the samples of a batch, a scalar without gradient.

    ``Forward`` explains ``logits`` [B, C], ``targets`` [B] and ``real`` [B].
    """
    return mean_over(F.cross_entropy(logits, targets, reduction="none"), real)
