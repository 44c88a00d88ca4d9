"""Attacks of colluding clients, which see updates of the cohort and all send the same step."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from fedexp.core.messages import Message, Tensors, Update
from fedexp.faults.quarantine import is_finite

Direction = Literal["unit", "std", "sign"]
Knowledge = Literal["honest", "own"]
JointStep = Callable[[Tensor, int, int], Tensor]
"""A function that computes the attackers' step [P].

A step is the change from the received to the sent weights, as a vector of P numbers. The arguments
are the known steps [n, P] float64, the number of updates of the cohort and the number of updates of
attackers.
"""


def joint_step(
    attack: str, factor: float, deviations: float | None, direction: Direction
) -> JointStep | None:
    """The function that computes the joint step of this attack's colluding clients.

    None if the attackers do not collude in this attack.
    """
    return {
        "little_is_enough": partial(little_is_enough, given=deviations),
        "inner_product": partial(inner_product, factor=factor),
        "min_max": partial(min_max, direction=direction),
    }.get(attack)


def little_is_enough(
    steps: Tensor, updates: int, attackers: int, given: float | None = None
) -> Tensor:
    """The step of the attack "A Little Is Enough" (Baruch et al., NeurIPS 2019, Alg. 3).

    In each coordinate the step is mean - z std of the known steps. std is the population standard
    deviation, as in the authors' code.

    Args:
        steps: [n, P] the known steps.
        updates: number of updates of the cohort.
        attackers: number of updates of attackers.
        given: z. If None, ``most_deviations`` computes z.
    """
    z = most_deviations(updates, attackers) if given is None else given
    return steps.mean(dim=0) - z * steps.std(dim=0, correction=0)


def most_deviations(updates: int, attackers: int) -> float:
    """Compute z: how many standard deviations the attackers may move away from the mean.

    Of n updates, m are from attackers. For a majority, the attackers need s = floor(n / 2 + 1) - m
    honest updates on their side. The honest values of a coordinate are taken as normally
    distributed. z is the number for which a share s / (n - m) of the honest values lies more than z
    standard deviations from the mean, on the attackers' side. So Phi(z) = (n - m - s) / (n - m)
    (Baruch et al., Alg. 3), where Phi is the distribution function of the standard normal
    distribution. If the attackers alone are a majority, s is 1. If this z is negative, the result
    is 0.
    """
    honest = updates - attackers
    supporters = max(updates // 2 + 1 - attackers, 1)
    if honest <= 2 * supporters:
        return 0.0
    from scipy.stats import norm  # slow to import

    return float(norm.ppf((honest - supporters) / honest))


def inner_product(steps: Tensor, updates: int, attackers: int, factor: float = 1.0) -> Tensor:
    """The step of the inner product attack: minus ``factor`` times the mean of the known steps.

    ``factor`` is epsilon in Xie et al., UAI 2019.
    """
    return -factor * steps.mean(dim=0)


def min_max(steps: Tensor, updates: int, attackers: int, direction: Direction = "unit") -> Tensor:
    """The step mean + gamma p of the Min-Max attack (Shejwalkar et al., NDSS 2021).

    mean and std are those of the known steps. The direction p is -mean / ||mean|| (``unit``), -std
    (``std``) or -sign(mean) (``sign``). gamma is the largest number for which the distance of
    mean + gamma p to every known step is at most the largest distance between two known steps. The
    authors search gamma from a starting value by steps that they halve, so their gamma stays below
    twice this value. Here each known step gives a quadratic equation for gamma, whose larger root
    is the bound for this step. gamma is the smallest bound. If p is zero, the result is the mean.
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
    # For each known step x:
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
    """Yield the honest updates unchanged; then yield the attackers' updates with the joint step.

    The updates that the attackers see stay in memory until the end of the round. An update that is
    not finite is yielded unchanged, even if it is an attacker's. The step of a client that was
    drawn twice counts twice. The order of ``updates`` does not change the joint step.

    Args:
        updates: the cohort's updates.
        message: the message that the clients received.
        attackers: the clients that collude.
        parameters: names of the weights that the attack changes.
        step: computes the joint step.
        knows: the updates that the attackers see. With ``own`` they see the attackers' updates
            before the attack. With ``honest`` they see the honest updates of the cohort; if there
            are none, they see the same updates as with ``own``.
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
    """Yield the step of each update as a vector [P] float64, in the order of the client numbers.

    A step is the update's weights ``names`` minus the weights that the client received. If a client
    was drawn twice, its step is yielded twice.
    """
    for update in sorted(updates, key=lambda update: update.client):
        before = message.to_client(update.client).weights
        pieces = [(update.weights[n].double() - before[n]).flatten() for n in names]
        step = torch.cat(pieces) if pieces else torch.zeros(0, dtype=torch.float64)
        yield from [step] * update.draws


def _added(before: Tensors, step: Tensor, names: Sequence[str]) -> Tensors:
    """Add a step [P] to the weights ``names`` of ``before``; return only these weights."""
    pieces = torch.split(step, [before[name].numel() for name in names])
    return {
        name: (before[name] + piece.view_as(before[name])).to(before[name])
        for name, piece in zip(names, pieces, strict=True)
    }
