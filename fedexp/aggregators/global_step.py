"""The base of aggregators that compare whole steps of clients, not each coordinate by itself."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedexp.aggregators.gathered import Gathered, middle_by_size
from fedexp.core.messages import PartUpdate, Tensors


class GlobalStep(Gathered):
    """Adds a global step to the current weights. A subclass computes this step in ``global_step``.

    All clients have the same weight; a client that was drawn twice counts twice. Integer buffers
    are copied from the client with the median number of samples.
    """

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The current weights plus the global step."""
        drawn = [update.weights for update in updates for _ in range(update.draws)]
        steps = {
            name: torch.stack([(weights[name] - value).double() for weights in drawn])
            for name, value in current.items()
            if value.is_floating_point()
        }
        step = self.global_step(steps) if steps else {}
        middle = middle_by_size(updates).weights
        return {
            name: (value + step[name]).to(value) if name in step else middle[name]
            for name, value in current.items()
        }

    def global_step(self, steps: Tensors) -> Tensors:
        """Compute the global step from the clients' steps.

        Args:
            steps: name of a float weight -> the steps of the K clients, float64 [K, ...].

        Returns:
            The name of each float weight -> its global step [...].
        """
        raise NotImplementedError


def distances(points: Tensors, center: Tensors) -> Tensor:
    """The L2 distances [K] of K points (name -> [K, ...]) from ``center`` (name -> [...])."""
    gaps = [(x - center[name]).reshape(len(x), -1) for name, x in points.items()]
    return torch.stack([gap.square().sum(dim=1) for gap in gaps]).cpu().sum(dim=0).sqrt()
