"""FedPHP's loss: the trained model learns from the private model that the client has inherited."""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedexp.config.compatibility.traits import INHERITED_MODEL
from fedexp.contract import Client, Forward, Loss, Memory, Outputs, PartMessage
from fedexp.losses.mean_outputs import soft_cross_entropy
from fedexp.personalization.fedphp import inherited_model

_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""The widths of the five Gaussian kernels, as multiples of the mean squared distance."""
_SMALLEST = 1e-8
"""Added to this mean, which is 0 if all rows are equal; value in the authors' code."""


class Inherited(Loss):
    """(1 - lambda) cross-entropy + lambda R (FedPHP; Li et al., ECML 2021).

    R transfers knowledge from the client's private model p, which ``personalization=fedphp`` keeps,
    to the trained model. p does not change during local training, and its outputs have no gradient.
    With ``mmd`` R is the squared maximum mean discrepancy between the features of the two models
    (``squared_mmd``). With ``kd`` R is the cross-entropy of the trained model's softmax to the
    softmax of p's logits divided by ``temperature``.

    In a client's first turn p is the received model. In the authors' code it is the initial one.

    Args:
        lam: lambda.
        transfer: ``mmd`` or ``kd``.
        temperature: divides the logits of p, but not of the trained model, as in the authors' code.
    """

    takes_only_merged = True
    reference_models = ("previous",)
    unread_if = {"transfer": {"lam": (0,)}, "temperature": {"lam": (0,), "transfer": ("mmd",)}}
    needs = {
        INHERITED_MODEL: "loss=inherited: learns from a private model; use personalization=fedphp"
    }

    def __init__(
        self,
        lam: Annotated[float, Field(ge=0, le=1)],
        transfer: Literal["mmd", "kd"],
        temperature: PositiveFloat,
    ) -> None:
        super().__init__()
        self.lam, self.transfer, self.temperature = lam, transfer, temperature

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Load the client's private model, with the head as adapted to the client."""
        weights = client.weights
        client.frozen_copies["previous"].set(weights | inherited_model(weights))

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        losses = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        inherited = references["previous"]
        if self.transfer == "mmd":
            transferred = squared_mmd(batch.z, inherited.z, batch.real)
        else:
            shares = (inherited.logits / self.temperature).softmax(dim=1)
            transferred = batch.mean(soft_cross_entropy(batch.logits, shares))
        return (1 - self.lam) * batch.mean(losses) + self.lam * transferred


def squared_mmd(z: Tensor, other: Tensor, real: Tensor | None) -> Tensor:
    """The squared maximum mean discrepancy of the features of two models, a scalar.

    It is mean k(z, z) + mean k(o, o) - 2 mean k(z, o) over all pairs of samples, a sample with
    itself included. k is a sum of five Gaussian kernels exp(-||x - y||^2 / b) with the widths b =
    m / 4, m / 2, m, 2 m, 4 m. m is the mean of ||x - y||^2 over all pairs of different rows of both
    models together; it is not differentiated. This is the kernel of the authors' code.

    Args:
        z: features [B, d].
        other: features of the other model of the same samples, [B, d].
        real: [B] 1 for a sample and 0 for padding; None if all rows are samples.
    """
    rows = torch.cat((z, other.to(z.dtype)))
    own = rows.square().sum(dim=1)
    squares = (own[:, None] + own[None, :] - 2 * rows @ rows.T).clamp(min=0)
    weights = torch.ones_like(rows[:, 0]) if real is None else torch.cat((real, real)).to(z.dtype)
    pairs = weights[:, None] * weights[None, :]
    count = weights.sum()
    mean = (squares.detach() * pairs).sum() / (count * (count - 1)).clamp(min=1) + _SMALLEST
    kernels = sum((-squares / (mean * width)).exp() for width in _WIDTHS)
    signs = torch.cat((torch.ones_like(z[:, 0]), -torch.ones_like(z[:, 0])))
    signed = pairs * signs[:, None] * signs[None, :]
    return (kernels * signed).sum() / (count / 2).square().clamp(min=1)
