"""FedDecorr: any loss, plus a penalty on correlated features."""

from functools import partial
from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.build import Node, build
from fedexp.config.compatibility.unread import declares_unread
from fedexp.core.forward import Forward, mean_over
from fedexp.core.sockets import Loss

Form = Literal["paper", "released"]

EPSILON = 1e-8
"""Number that is added to variances, so that a constant feature is scaled to 0 and not to NaN."""


def correlation_penalty(z: Tensor, real: Tensor | None, form: Form) -> Tensor:
    """Mean squared correlation of the features of a batch (Shi et al., ICLR 2023, Eq. 6).

    z_i [d] is the feature vector of sample i after each feature is scaled to mean 0 and variance 1
    over the n samples of the batch. The correlation matrix is K = sum_i z_i z_i^T / n, [d, d].

    With ``paper`` the penalty is ||K||_F^2 / d^2. If no feature is constant, it is at least 1/d. It
    is 1 if each pair of features has the correlation 1 or -1.

    With ``released`` the penalty is 1/n times the mean of the squared off-diagonal elements of
    sum_i z_i z_i^T. Here the variance has the denominator n - 1, so this matrix is (n - 1) K.
    Therefore the gradient in a batch of 64 is about 62 times that of ``paper``.

    Args:
        z: features [B, d].
        real: [B], 1 for a sample, 0 for padding; see ``Forward``.
        form: ``paper`` or ``released``.

    Returns:
        A scalar, which is 0 for a single sample.
    """
    rows = z.new_ones(len(z)) if real is None else real.to(z.dtype)
    count = rows.sum().clamp(min=1)
    centred = (z - mean_over(z, real)) * rows.unsqueeze(1)
    degrees = count if form == "paper" else (count - 1).clamp(min=1)
    scores = centred / (centred.square().sum(dim=0) / degrees + EPSILON).sqrt()
    products = scores.T @ scores
    if form == "paper":
        return (products / count).square().mean()
    squares = products.square()
    off_diagonal = squares.sum() - squares.diagonal().sum()
    pairs = max(1, z.shape[1] * (z.shape[1] - 1))
    return off_diagonal / pairs / count


@declares_unread({"form": {"beta": (0,)}})
def decorrelated(base: Node, beta: NonNegativeFloat, form: Form) -> Loss:
    """Add beta * ``correlation_penalty`` of the features z, the input of the head, to a loss.

    The result is the base loss with a forward hook that adds the penalty. The hook changes nothing
    else, such as messages or memory.

    Args:
        base: configuration of the base loss: ``_target_`` and the arguments.
        beta: weight of the penalty. The released values belong to the form ``released``.
        form: the formula of the penalty, ``paper`` or ``released``; see ``correlation_penalty``.
    """
    loss: Loss = build("loss.base", base, Loss)
    loss.register_forward_hook(partial(_add_penalty, beta, form))
    return loss


def _add_penalty(
    beta: float, form: Form, loss: torch.nn.Module, arguments: tuple[Any, ...], value: Tensor
) -> Tensor:
    """Add the correlation penalty to the base loss ``value`` of a batch (the forward hook)."""
    batch: Forward = arguments[0]
    return value + beta * correlation_penalty(batch.z, batch.real, form)
