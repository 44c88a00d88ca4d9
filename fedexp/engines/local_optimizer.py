"""The local optimizer: any class of ``torch.optim``, created anew for each client and round.

The learning rate of round t is the rate of a ``torch.optim.lr_scheduler`` after t - 1 steps, times
``round_decay ** (t - 1)``. It depends only on the round, so a resumed run need not restore it.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedexp.config.build import Node, build
from fedexp.config.compatibility.traits import ELEMENTWISE, LOCAL_MOMENTUM, OTHER_STEPS
from fedexp.errors import InputError, first_line

Momentum = Annotated[float, Field(ge=0, lt=1)]

OPTIMIZER_TYPES: Mapping[str, Any] = {
    "lr": PositiveFloat,
    "momentum": Momentum,
    "betas": tuple[Momentum, Momentum],
    "weight_decay": NonNegativeFloat,
}
SCHEDULE_TYPES: Mapping[str, Any] = {
    "gamma": PositiveFloat,
    "step_size": PositiveInt,
    "milestones": list[PositiveInt],
    "T_max": PositiveInt,
    "eta_min": NonNegativeFloat,
    "total_iters": NonNegativeInt,
    "start_factor": PositiveFloat,
    "end_factor": PositiveFloat,
}
"""Valid ranges of common arguments; PyTorch's own annotations allow any number and tensors."""

FUSED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Optimizers with a fused kernel for CPU and GPU: one pass over the weights instead of four."""
_KERNELS = {"fused", "foreach", "differentiable"}

# Raised by optimizers and schedulers if a value is invalid or a loss is missing.
_REFUSALS = (ArithmeticError, AttributeError, KeyError, RuntimeError, TypeError, ValueError)


class LocalOptimizer:
    """A function (parameters, round) -> a fresh optimizer with that round's learning rate.

    Args:
        optimizer: config of a ``torch.optim`` class: ``_target_`` and arguments, including ``lr``.
        schedule: config of a ``torch.optim.lr_scheduler`` class; it takes one step each round.
        round_decay: factor by which the learning rate shrinks from round to round.
        rounds: T, the number of rounds; later rounds keep the schedule's last learning rate.

    Attributes:
        traits: say whether the optimizer is elementwise (``is_elementwise``), whether it is SGD
            with momentum, and whether it is not SGD.
        is_constant: whether the schedule leaves the learning rate as it is in all rounds.
        has_state: whether the optimizer keeps tensors from step to step, such as a momentum.

    Raises:
        InputError: an unknown key, a value out of range, or an unsuitable class.
    """

    def __init__(self, optimizer: Node, schedule: Node, round_decay: float, rounds: int) -> None:
        self._make, tried = _optimizer_factory(optimizer)
        self._round_decay = round_decay
        self._rates = _learning_rates(self._make, schedule, rounds)
        self.is_constant = set(self._rates) == {float(tried.param_groups[0]["lr"])}
        self.has_state = any(len(each) > 0 for each in tried.state.values())
        is_sgd = isinstance(tried, torch.optim.SGD)
        traits = {
            ELEMENTWISE: is_elementwise(self),
            LOCAL_MOMENTUM: is_sgd and self.has_state,
            OTHER_STEPS: not is_sgd,
        }
        self.traits = frozenset(trait for trait, holds in traits.items() if holds)

    def __call__(self, parameters: Iterable[nn.Parameter], round: int) -> Optimizer:
        """Return a new optimizer of ``parameters`` for this round, counted from 1."""
        return self._make(parameters, lr=self.learning_rate(round))

    def learning_rate(self, round: int) -> float:
        """The schedule's learning rate times ``round_decay ** (round - 1)``."""
        scheduled = self._rates[min(max(round, 1), len(self._rates)) - 1]
        return scheduled * self._round_decay ** (round - 1)


def is_elementwise(make: Callable[[list[nn.Parameter], int], Optimizer]) -> bool:
    """Whether optimizers from ``make`` update each element independently of the others.

    Only then can one optimizer step serve the stacked parameters of many clients. Adafactor and
    Muon, for example, use norms or products of whole matrices.
    """
    values = torch.arange(1.0, 9.0).reshape(2, 2, 2)
    stacked = nn.Parameter(values.clone())
    rows = [nn.Parameter(row.clone()) for row in values]
    for parameter, gradient in zip([stacked, *rows], [values, *values], strict=True):
        parameter.grad = gradient
    try:
        make([stacked], 1).step()
        make(rows, 1).step()
    except _REFUSALS:  # for example, an optimizer that accepts matrices only
        return False
    return all(torch.allclose(row, of_stack) for row, of_stack in zip(rows, stacked, strict=True))


def _optimizer_factory(node: Node) -> tuple[partial[Optimizer], Optimizer]:
    """The optimizer's class with its arguments, and one that has taken a step on one parameter."""
    make: partial[Optimizer] = build("optimizer", node, Optimizer, ("params",), OPTIMIZER_TYPES)
    if make.func in FUSED and not _KERNELS & node.keys():
        make.keywords["fused"] = True
    parameter = nn.Parameter(torch.zeros(1, 1))
    parameter.grad = torch.ones(1, 1)
    try:
        tried = make([parameter])
        tried.step()
    except _REFUSALS as error:
        raise InputError(f"optimizer: {first_line(error)}") from error
    return make, tried


def _learning_rates(
    make: Callable[..., Optimizer], schedule: Node, rounds: int
) -> tuple[float, ...]:
    """The learning rate of each round under ``schedule``, without ``round_decay``."""
    optimizer = make([nn.Parameter(torch.zeros(1, 1))])
    (group,) = optimizer.param_groups
    others = {name: value for name, value in group.items() if name not in ("lr", "params")}
    attach = build("schedule", schedule, LRScheduler, ("optimizer",), SCHEDULE_TYPES)
    rates = []
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the scheduler steps before its optimizer
            scheduler = attach(optimizer)
            rates.append(float(group["lr"]))
            for _ in range(rounds - 1):
                scheduler.step()
                rates.append(float(group["lr"]))
    except _REFUSALS as error:
        raise InputError(f"schedule: {first_line(error)}") from error
    if changed := [name for name, value in others.items() if group[name] != value]:
        raise InputError(f"schedule: changes {changed[0]}; only the learning rate may change")
    for round, rate in enumerate(rates, start=1):
        if not (math.isfinite(rate) and rate > 0):
            raise InputError(
                f"schedule: the learning rate of round {round} is {rate:g}, not positive"
            )
    return tuple(rates)
