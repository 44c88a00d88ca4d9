"""Weights of updates that are stale: their clients started from an earlier global model.

The staleness of an update is t - tau: its client started in round tau, and it arrives in round t. A
round is a server step. An update that is not stale has weight 1.
"""

from dataclasses import replace

from fedexp.core.messages import Tensors, Update


def polynomial(staleness: int, exponent: float) -> float:
    """An update's weight, (1 + staleness)^-exponent (Xie et al., 2019; FedBuff: exponent 1/2)."""
    return float((1 + staleness) ** -exponent)


def hinge(staleness: int, grace: int, slope: float) -> float:
    """Weight 1 up to ``grace``, then 1 / (slope (staleness - grace) + 1) (Xie et al., 2019)."""
    return 1 / (slope * max(staleness - grace, 0) + 1)


def rebased(
    update: Update, base: Tensors, current: Tensors, weight: float, parameters: frozenset[str]
) -> Update:
    """Turn a stale update into one of the current round: w^t + weight (w_k - w) replaces w_k.

    Buffers, such as BatchNorm's statistics, stay as the client sent them: a variance plus a step
    could be negative.

    Args:
        update: the stale update, with the client's trained weights w_k.
        base: w, the weights that the client's step counts from.
        current: w^t, the current global weights.
        weight: factor of the step.
        parameters: names of the weights that are parameters.
    """
    moved = {
        name: current[name] + weight * (value - base[name])
        for name, value in update.weights.items()
        if name in parameters
    }
    return replace(update, weights=update.weights | moved)
