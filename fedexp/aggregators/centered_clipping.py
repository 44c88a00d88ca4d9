"""Centred clipping: each client's step is clipped around the last global step."""

import torch
from pydantic import PositiveFloat, PositiveInt

from fedexp.aggregators.clipping import MEASURES_STEPS
from fedexp.aggregators.global_step import GlobalStep, distances
from fedexp.config.compatibility.traits import NOT_THE_MEAN, TAKES_STALE
from fedexp.contract import Setting, Tensors


class CenteredClipping(GlobalStep):
    """The mean of the clients' steps, clipped around the last global step.

    v is the global step, and s_k is client k's step from the global weights. In each round v starts
    from the last round's v; in the first round it starts from 0. Then v moves several times, with a
    clipping radius tau (Karimireddy et al., ICML 2021, Alg. 2):

        $v <- v + mean_k (s_k - v) min(1, tau / ||s_k - v||)$.

    The paper clips the clients' momenta. Here the clients' steps are clipped instead: a client that
    does not take part in every round has no up-to-date momentum. In float buffers, such as
    BatchNorm's statistics, v starts from 0 in every round, so that they stay between the values of
    the server and of the clients: with the last round's v a variance could become negative.

    Metric: ``aggregator/clipped``, the share of the clients whose $s_k - v$ was clipped at least
    once in the round. If it is 0, the rule was the mean.

    Args:
        radius: tau, the largest norm of s_k - v after clipping. The released experiments have 100,
            but for momenta of gradients. A step contains the learning rate and several gradients,
            so a good radius for steps is another one.
        iterations: how often v moves in a round.
    """

    traits = frozenset({NOT_THE_MEAN, TAKES_STALE})
    discourages = MEASURES_STEPS
    saved = ("center",)

    def __init__(self, radius: PositiveFloat, iterations: PositiveInt) -> None:
        super().__init__()
        self.radius, self.iterations = radius, iterations
        self.buffers: frozenset[str] = frozenset()
        self.center: Tensors = {}
        self._clipped = 0.0
        self._next: Tensors = {}  # the last global step, until ``commit``

    def setup(self, setting: Setting) -> None:
        """Store the names of the buffers that clients send."""
        self.buffers = setting.model.shared - setting.model.parameters.keys()

    def global_step(self, steps: Tensors) -> Tensors:
        """Start from the last global step v, move it ``iterations`` times, and return the result.

        If the server accepts the result, the parameters of the next round start from it.
        """
        center = {
            n: self.center[n].to(x) if n in self.center else torch.zeros_like(x[0])
            for n, x in steps.items()
        }
        clipped_once = torch.zeros(len(next(iter(steps.values()))), dtype=torch.bool)
        for _ in range(self.iterations):
            factors = (self.radius / distances(steps, center).clamp(min=1e-12)).clamp(max=1)
            clipped_once |= factors < 1
            for name, x in steps.items():
                clipped = torch.einsum("k,k...->k...", factors.to(x), x - center[name])
                center[name] = center[name] + clipped.mean(dim=0)
        self._clipped = clipped_once.double().mean().item()
        self._next = {name: step for name, step in center.items() if name not in self.buffers}
        return center

    def commit(self) -> None:
        """Keep the global step for the next round."""
        self.center = self._next

    def metrics(self) -> dict[str, float]:
        """The share of the clients whose difference from v was clipped."""
        return {"aggregator/clipped": self._clipped}
