"""RFA: the geometric median of the clients' weights."""

from collections.abc import Sequence

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.aggregators.gathered import Gathered, middle_by_size
from fedexp.core.messages import PartUpdate, Tensors


class GeometricMedian(Gathered):
    """The smoothed Weiszfeld algorithm (Pillutla et al., IEEE TSP 2022, Algorithm 2).

    It moves towards the point with the least mean distance to the clients' weights. All clients
    have the same weight; a client that was drawn twice counts twice. The paper weighs clients by
    samples, which a Byzantine client could overstate. Integer buffers are taken from the client
    with the median number of samples.

    Args:
        iterations: of the algorithm; it starts from the mean.
        smoothing: nu, the least distance that a client's distance counts as.
    """

    def __init__(self, iterations: PositiveInt, smoothing: PositiveFloat) -> None:
        super().__init__()
        self.iterations, self.smoothing = iterations, smoothing

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The median of all weights as one vector."""
        floats = [name for name, value in current.items() if value.is_floating_point()]
        steps = {
            n: torch.stack([(u.weights[n] - current[n]).double() for u in updates]) for n in floats
        }
        draws = torch.tensor([float(u.draws) for u in updates], dtype=torch.float64)
        weights = draws / draws.sum()
        for _ in range(self.iterations):
            center = {
                name: torch.einsum("k,k...->...", weights.to(x), x) for name, x in steps.items()
            }
            inverse = draws / distances(steps, center).clamp(min=self.smoothing)
            weights = inverse / inverse.sum()
        middle = middle_by_size(updates).weights
        return {
            name: (value + torch.einsum("k,k...->...", weights.to(steps[name]), steps[name])).to(
                value
            )
            if name in steps
            else middle[name]
            for name, value in current.items()
        }


def distances(points: Tensors, center: Tensors) -> Tensor:
    """[K] L2 distances of the points (name -> [K, ...]) from ``center`` (name -> [...])."""
    squares = [
        (x - center[name]).square().flatten(1).sum(dim=1).cpu() for name, x in points.items()
    ]
    return torch.stack(squares).sum(dim=0).sqrt()
