"""Server optimizers: the server applies momentum or an adaptive optimizer to the average step."""

from typing import Annotated

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedexp.aggregators.average import Average, Weighting
from fedexp.config.compatibility.traits import NOT_THE_MEAN, TAKES_STALE
from fedexp.contract import Setting, Tensors

Decay = Annotated[float, Field(ge=0, lt=1)]
Moments = dict[str, Tensor]


class ServerOptimizer(Average):
    """The base of server optimizers: the average step delta is used like a negative gradient.

    The update of the global weights w is w <- w + lr step(delta), with delta = average - w (Reddi
    et al., ICLR 2021, Alg. 2). Only parameters take the step; buffers are averaged. A subclass
    defines ``step``. If a new moment is not finite, the new weight is NaN. Then the server refuses
    the result, and the moments stay as they were. (With an infinite moment a weight would never
    move again.)
    """

    traits = frozenset({NOT_THE_MEAN, TAKES_STALE})
    saved: tuple[str, ...] = ("momentum",)

    def __init__(self, weighting: Weighting, lr: PositiveFloat, beta1: Decay) -> None:
        super().__init__(weighting)
        self.lr, self.beta1 = lr, beta1
        self.momentum: Moments = {}
        self._next: dict[str, Moments] = {}  # the moments after the last merge, until ``commit``

    def setup(self, setting: Setting) -> None:
        """Find which weights are parameters."""
        self.parameters = setting.model.parameters.keys()

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after one server step."""
        self._next = before = self.server_state()
        merged = super().merge(current)
        if merged is current:  # no samples
            return merged
        for name in self.parameters & merged.keys():
            direction = self.step(name, merged[name] - current[name])
            for kind in self.saved:
                direction = direction.where(getattr(self, kind)[name].isfinite(), torch.nan)
            merged[name] = current[name] + self.lr * direction
        self._next = self.server_state()
        vars(self).update(before)
        return merged

    def commit(self) -> None:
        """Keep the moments of the last merge."""
        vars(self).update(self._next)

    def step(self, name: str, delta: Tensor) -> Tensor:
        """Update one parameter's moments; return its step, before the learning rate is applied."""
        raise NotImplementedError


class Momentum(ServerOptimizer):
    """FedAvgM (Hsu et al., 2019): $m <- beta1 m + delta$, $w <- w + lr m$; delta: the mean step."""

    def step(self, name: str, delta: Tensor) -> Tensor:
        """Update and return the momentum m."""
        m = self.momentum.get(name, torch.zeros_like(delta)).to(delta.device)
        self.momentum[name] = self.beta1 * m + delta
        return self.momentum[name]


class Adaptive(ServerOptimizer):
    """The base of adaptive server optimizers (FedOpt).

    With the average step delta, the momentum is m <- beta1 m + (1 - beta1) delta. v is the second
    moment: it starts from tau^2, and a subclass defines in ``second_moment`` how delta^2 changes
    it. The weights become w + lr m / (sqrt(v) + tau), where tau is a small constant.
    """

    saved = ("momentum", "variance")

    def __init__(
        self,
        weighting: Weighting,
        lr: PositiveFloat,
        beta1: Decay,
        beta2: Decay,
        tau: PositiveFloat,
    ) -> None:
        super().__init__(weighting, lr, beta1)
        self.beta2, self.tau = beta2, tau
        self.variance: Moments = {}

    def step(self, name: str, delta: Tensor) -> Tensor:
        """Update the momentum m and the second moment v; return m / (sqrt(v) + tau).

        There is no bias correction, as in the paper.
        """
        m = self.momentum.get(name, torch.zeros_like(delta)).to(delta.device)
        v = self.variance.get(name, torch.full_like(delta, self.tau**2)).to(delta.device)
        self.momentum[name] = self.beta1 * m + (1 - self.beta1) * delta
        self.variance[name] = self.second_moment(v, delta.square())
        return self.momentum[name] / (self.variance[name].sqrt() + self.tau)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """The next second moment, from the last one ``v`` and ``squared`` = delta^2."""
        raise NotImplementedError


class Adam(Adaptive):
    """FedAdam: the second moment is $v <- beta2 v + (1 - beta2) delta^2$; delta: the mean step."""

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """The exponential moving average of delta^2, where delta is the average step."""
        return self.beta2 * v + (1 - self.beta2) * squared


class Adagrad(Adaptive):
    """FedAdagrad: the second moment is $v <- v + delta^2$, with the average step delta."""

    def __init__(
        self, weighting: Weighting, lr: PositiveFloat, beta1: Decay, tau: PositiveFloat
    ) -> None:
        super().__init__(weighting, lr, beta1, beta2=0, tau=tau)

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """The second moment ``v`` plus delta^2, where delta is the average step."""
        return v + squared


class Yogi(Adaptive):
    """FedYogi: $v <- v - (1 - beta2) delta^2 sign(v - delta^2)$.

    v is the second moment, and delta is the average step.
    """

    def second_moment(self, v: Tensor, squared: Tensor) -> Tensor:
        """Move the second moment v towards delta^2, where delta is the average step.

        The size of this change depends on delta^2 only.
        """
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)
