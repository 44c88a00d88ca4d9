"""Local optimizers: torch.optim's, made afresh for each client and round.

Fused: one pass over the weights instead of four, which for small models is a fifth of a step.
"""

from collections.abc import Iterable
from typing import Annotated

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import nn

Decay = Annotated[float, Field(gt=0, le=1)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


def sgd(
    parameters: Iterable[nn.Parameter],
    round: int,
    lr: PositiveFloat,
    momentum: Momentum,
    nesterov: bool,
    weight_decay: NonNegativeFloat,
    round_decay: Decay,
) -> torch.optim.SGD:
    """SGD with learning rate lr * round_decay^(round - 1)."""
    return torch.optim.SGD(
        parameters,
        lr=lr * round_decay ** (round - 1),
        momentum=momentum,
        nesterov=nesterov,
        weight_decay=weight_decay,
        fused=True,
    )


def adam(
    parameters: Iterable[nn.Parameter],
    round: int,
    lr: PositiveFloat,
    betas: tuple[Momentum, Momentum],
    eps: PositiveFloat,
    weight_decay: NonNegativeFloat,
    round_decay: Decay,
) -> torch.optim.Adam:
    """Adam with learning rate lr * round_decay^(round - 1)."""
    return torch.optim.Adam(
        parameters,
        lr=lr * round_decay ** (round - 1),
        betas=betas,
        eps=eps,
        weight_decay=weight_decay,
        fused=True,
    )
