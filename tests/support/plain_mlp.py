"""The default model with a linear head, and plain gradient descent on a loss of its outputs."""

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Tensors
from support.plain_loop import LR

HEAD = ("head.linear.weight", "head.linear.bias")


def features(weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The features [B, d] of a model with two layers."""
    z = inputs.flatten(1)
    for layer in ("backbone.1.0", "backbone.1.2"):
        z = F.linear(z, weights[f"{layer}.weight"], weights[f"{layer}.bias"]).relu()
    return z


def logits(weights: Mapping[str, Tensor], z: Tensor) -> Tensor:
    """The logits [B, C] of a linear head with bias."""
    found: Tensor = F.linear(z, weights[HEAD[0]], weights[HEAD[1]])
    return found


def descend(
    weights: Tensors, batches: Iterable[Batch], loss: Callable[[Tensors, Batch, int], Tensor]
) -> Tensors:
    """The weights after a plain gradient step on the ``loss(weights, batch, step)`` of each."""
    for step, batch in enumerate(batches):
        point = {name: value.detach().clone().requires_grad_() for name, value in weights.items()}
        slopes = torch.autograd.grad(loss(point, batch, step), list(point.values()))
        moved = zip(point.items(), slopes, strict=True)
        weights = {name: (value - LR * slope).detach() for (name, value), slope in moved}
    return weights
