"""Attacks of colluding clients: they see updates of the cohort, and all send the same step."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from scipy.stats import norm
from torch import Tensor

from fedexp.core.messages import Message, Tensors, Update
from fedexp.faults.quarantine import is_finite

Direction = Literal["unit", "std", "sign"]
Knowledge = Literal["honest", "own"]
JointStep = Callable[[Tensor, int, int], Tensor]
"""(known steps [n, P] float64, updates of the cohort, updates of attackers) -> the step [P]."""


def joint_step(
    attack: str, factor: float, deviations: float | None, direction: Direction
) -> JointStep | None:
    """The step of this attack; None if its attackers do not collude."""
    return {
        "little_is_enough": partial(little_is_enough, given=deviations),
        "inner_product": partial(inner_product, factor=factor),
        "min_max": partial(min_max, direction=direction),
    }.get(attack)


def little_is_enough(
    steps: Tensor, updates: int, attackers: int, given: float | None = None
) -> Tensor:
    """mean - z std of each coordinate (Baruch et al., NeurIPS 2019, Alg. 3).

    std is the population standard deviation, as in the authors' code. ``given`` is z; None:
    ``most_deviations``.
    """
    z = most_deviations(updates, attackers) if given is None else given
    return steps.mean(dim=0) - z * steps.std(dim=0, correction=0)


def most_deviations(updates: int, attackers: int) -> float:
    """z: how many standard deviations the attackers move away from the mean.

    Of n updates m are from attackers. With s = floor(n / 2 + 1) - m honest updates on their side
    the attackers are the majority. z is chosen so that s of the n - m honest values lie farther
    from the mean than z standard deviations, if they are normally distributed:
    Phi(z) = (n - m - s) / (n - m) (Baruch et al., Alg. 3). Phi is the normal distribution function.
    If m alone is a majority, s counts as 1; a negative z counts as 0.
    """
    honest = updates - attackers
    supporters = max(updates // 2 + 1 - attackers, 1)
    if honest <= 2 * supporters:
        return 0.0
    return float(norm.ppf((honest - supporters) / honest))


def inner_product(steps: Tensor, updates: int, attackers: int, factor: float = 1.0) -> Tensor:
    """-epsilon * mean; ``factor`` is epsilon (Xie et al., UAI 2019)."""
    return -factor * steps.mean(dim=0)


def min_max(steps: Tensor, updates: int, attackers: int, direction: Direction = "unit") -> Tensor:
    """mean + gamma p, as far from the mean as Min-Max allows (Shejwalkar et al., NDSS 2021).

    gamma is the largest number for which the result's distance to every known step is at most the
    largest distance between two known steps. p is -mean / ||mean|| (``unit``), -std (``std``) or
    -sign(mean) (``sign``). The authors search gamma by halving; here each known step gives a
    quadratic equation, and gamma is the smallest of the roots. If p is zero, the result is the
    mean.
    """
    mean = steps.mean(dim=0)
    p: Tensor = {
        "unit": -mean / mean.norm().clamp(min=torch.finfo(mean.dtype).tiny),
        "std": -steps.std(dim=0, correction=0),
        "sign": -mean.sign(),
    }[direction]
    square = p.square().sum()
    if not square > 0:
        return mean
    gaps = mean - steps
    largest = torch.stack([(steps - each).square().sum(dim=1).max() for each in steps]).max()
    # ||mean + gamma p - x||^2 = square gamma^2 + 2 inner gamma + ||mean - x||^2 <= largest
    inner = gaps @ p
    slack = (largest - gaps.square().sum(dim=1)).clamp(min=0)
    gamma: Tensor = (((inner.square() + square * slack).sqrt() - inner) / square).min()
    return mean + gamma * p


def collude(
    updates: Iterable[Update],
    message: Message,
    attackers: Collection[int],
    parameters: Collection[str],
    step: JointStep,
    knows: Knowledge,
) -> Iterator[Update]:
    """Pass on honest updates; then yield the attackers' updates, with the joint step.

    Keeps the updates that the attackers see until the end of the round. An update that is not
    finite is passed on without an attack. The step of a client that was drawn twice counts twice.
    The order of the updates does not change the result.

    Args:
        updates: the cohort's updates.
        message: the message that the clients received.
        attackers: the clients that collude.
        parameters: names of the weights that the attack changes.
        step: computes the joint step.
        knows: ``honest``: the honest updates of the cohort, or the attackers' own if there are
            none; ``own``: the updates of the attackers before the attack.
    """
    honest: list[Update] = []
    held: list[Update] = []
    count = 0
    for update in updates:
        count += update.draws * update.is_finite
        if update.client in attackers and update.is_finite:
            held.append(update)
            continue
        if update.is_finite and knows == "honest":
            honest.append(update)
        yield update
    if not held:
        return
    names = [name for name in message.weights if name in parameters]
    known = torch.stack(list(_steps(honest or held, message, names)))
    sent = step(known, count, sum(update.draws for update in held))
    for update in sorted(held, key=lambda update: update.client):
        before = message.to_client(update.client).weights
        attacked = replace(update, weights=update.weights | _added(before, sent, names))
        yield replace(attacked, is_finite=is_finite(attacked))


def _steps(updates: Sequence[Update], message: Message, names: Sequence[str]) -> Iterator[Tensor]:
    """Yield each update's step, flat [P] float64, in order of clients.

    A step is the update's weights ``names`` minus the weights that the client received. A client
    drawn twice gives two steps.
    """
    for update in sorted(updates, key=lambda update: update.client):
        before = message.to_client(update.client).weights
        pieces = [(update.weights[n].double() - before[n]).flatten() for n in names]
        step = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)
        yield from [step] * update.draws


def _added(before: Tensors, step: Tensor, names: Sequence[str]) -> Tensors:
    """The weights ``before`` plus a step [P]."""
    pieces = torch.split(step, [before[name].numel() for name in names])
    return {
        name: (before[name] + piece.view_as(before[name])).to(before[name])
        for name, piece in zip(names, pieces, strict=True)
    }
