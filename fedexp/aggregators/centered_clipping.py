"""Centred clipping: each client's step is clipped around the last global step."""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import PositiveFloat, PositiveInt

from fedexp.aggregators.gathered import Gathered, middle_by_size
from fedexp.aggregators.geometric_median import distances
from fedexp.core.messages import PartUpdate, Tensors


class CenteredClipping(Gathered):
    """v <- v + mean_k (s_k - v) min(1, tau / ||s_k - v||) (Karimireddy et al., ICML 2021, Alg. 2).

    s_k is client k's step from the global weights. v starts from the last round's v, in the first
    round from 0, and is the global step. The paper clips the clients' momenta; here clients that
    take part now and then send their steps. All clients have the same weight. Integer buffers are
    taken from the client with the median number of samples.

    Args:
        radius: tau.
        iterations: how often v moves in a round.
    """

    def __init__(self, radius: PositiveFloat, iterations: PositiveInt) -> None:
        super().__init__()
        self.radius, self.iterations = radius, iterations
        self._center: Tensors = {}

    def combine(self, updates: Sequence[PartUpdate], current: Tensors) -> Tensors:
        """The current weights plus v."""
        drawn = [update for update in updates for _ in range(update.draws)]
        floats = [name for name, value in current.items() if value.is_floating_point()]
        steps = {
            n: torch.stack([(u.weights[n] - current[n]).double() for u in drawn]) for n in floats
        }
        center = {
            n: self._center[n].to(x) if n in self._center else x[0] * 0 for n, x in steps.items()
        }
        for _ in range(self.iterations):
            factors = (self.radius / distances(steps, center).clamp(min=1e-12)).clamp(max=1)
            for name, x in steps.items():
                shrunk = torch.einsum("k,k...->k...", factors.to(x), x - center[name])
                center[name] = center[name] + shrunk.mean(dim=0)
        if all(value.isfinite().all() for value in center.values()):
            self._center = center  # the server refuses weights that are not finite
        middle = middle_by_size(updates).weights
        return {
            name: (value + center[name]).to(value) if name in center else middle[name]
            for name, value in current.items()
        }

    def server_state(self) -> dict[str, Any]:
        """v."""
        return {"center": self._center}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self._center = state["center"]
