"""Norm clipping: averages the clients' steps after shortening long steps."""

import math
from dataclasses import replace

import torch
from pydantic import PositiveFloat

from fedexp.aggregators.average import Average, Weighting
from fedexp.config.compatibility.traits import MIXES_LATE, NOT_THE_MEAN, OTHER_STARTS
from fedexp.core.messages import PartUpdate, Tensors, Update

MEASURES_STEPS = dict.fromkeys(
    OTHER_STARTS,
    "this aggregator measures each client's step from the global weights, but this {other} may "
    "start clients from other weights, so the step is not only the client's own; use "
    "aggregator=uniform or sample_weighted",
) | {
    MIXES_LATE: "this aggregator measures each client's step from the global weights, but the "
    "update of a late client also has what the server moved in the meantime; use "
    "coordination.step_from=received"
}
"""``discourages`` of aggregators that take w_k - w^t for the path of client k's training."""


class NormClipped(Average):
    """Averages the clients' steps after scaling long steps down (Sun et al., 2019, Section 5).

    The step of client k is $w_k - w^t$, its trained weights minus the global weights. It is one
    vector of all float weights, including buffers. If its norm is larger than ``norm``, it is
    scaled down to ``norm``. With ``weighting=samples`` a client's influence still grows with the
    number of samples that it reports.

    Args:
        weighting: a client's weight in the average: ``samples`` or ``uniform``.
        norm: the largest L2 norm of a step.
    """

    traits = frozenset({NOT_THE_MEAN})
    discourages = MEASURES_STEPS

    def __init__(self, weighting: Weighting, norm: PositiveFloat) -> None:
        super().__init__(weighting)
        self.norm = norm
        self._last_norms: list[float] = []

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update. If the norm of its step is too large, scale the step down."""
        step = steps(update.weights, current)
        norm = norm_of(step)
        self.numbers.append(norm)
        if norm > self.norm:
            scaled = {n: (current[n] + s * (self.norm / norm)) for n, s in step.items()}
            scaled = {n: value.to(current[n].dtype) for n, value in scaled.items()}
            update = replace(update, weights=update.weights | scaled)
        super().add(update, current)

    def merge(self, current: Tensors) -> Tensors:
        """The current weights plus the average of the scaled steps."""
        self._last_norms = self.numbers
        return super().merge(current)

    def metrics(self) -> dict[str, float]:
        """The share of steps that were scaled down, and the mean norm before scaling."""
        return clipping_metrics(self._last_norms, self.norm)


def clipping_metrics(norms: list[float], bound: float) -> dict[str, float]:
    """The share of clipped steps (``aggregator/clipped``) and mean norm (``aggregator/step_norm``).

    Args:
        norms: the norms of the clients' steps before clipping.
        bound: the largest norm that is not clipped.
    """
    return {
        "aggregator/clipped": sum(norm > bound for norm in norms) / len(norms),
        "aggregator/step_norm": math.fsum(norms) / len(norms),
    }


def steps(weights: Tensors, current: Tensors) -> Tensors:
    """A client's step: name of a float weight -> trained minus current weight, in float64."""
    return {
        name: weights[name].double() - before
        for name, before in current.items()
        if before.is_floating_point()
    }


def norm_of(step: Tensors) -> float:
    """The L2 norm of all tensors as one vector; 0 if there are no tensors."""
    return float(torch.stack([value.norm() for value in step.values()]).norm()) if step else 0.0
