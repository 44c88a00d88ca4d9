"""DP-FedAvg: a cohort's mean step, clipped and noised, with the privacy spent so far."""

from collections.abc import Sequence
from itertools import chain
from types import MappingProxyType
from typing import Annotated, Any

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from fedexp.aggregators.accountant import Accountant
from fedexp.aggregators.clipping import clipping_metrics, norm_of, steps
from fedexp.core.compatibility import UNIFORM_COHORTS
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.randomness import torch_generator
from fedexp.core.sockets import Aggregator
from fedexp.distributed.ranks import Contribution
from fedexp.errors import InputError


class Private(Aggregator):
    """w^t + (sum_k clip(w_k - w^t) + N(0, (z S)^2 I)) / K (McMahan et al., ICLR 2018, Alg. 1).

    What is hidden is whether a client took part at all, from whoever sees the global models; the
    server itself is trusted. Each client of the cohort counts once, whatever its samples and
    however often it was drawn, so that adding or removing one moves the sum by S at most. K is what
    was asked for, not what came in (the paper's fixed denominator): a lost update is a step of 0.

    The accountant takes each of the N clients with data to join a round by a coin of its own, with
    probability q = K / N. The sampler draws exactly K of them, which has nearly the same effect but
    is not covered by that proof: take epsilon for an approximation. The noise comes from the run's
    seed: whoever knows the seed can take it away again. Metrics are logged without noise.

    Nothing else may travel: a part that reports to the server, buffers such as BatchNorm's and
    samplers that look at clients are refused.

    Args:
        clip: S, the bound on a step's L2 norm.
        noise_multiplier: z, the noise's standard deviation over the sensitivity S.
        delta: of the (epsilon, delta) that is logged; must be below 1 / N.
    """

    # What is known of privacy holds for cohorts that tell nothing about anybody's data.
    needs = MappingProxyType(
        {
            UNIFORM_COHORTS: "aggregator=private: epsilon is known for uniformly drawn cohorts; "
            "take sampler=random"
        }
    )

    def __init__(
        self,
        clip: PositiveFloat,
        noise_multiplier: PositiveFloat,
        delta: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        self.clip, self.noise_multiplier, self.delta = clip, noise_multiplier, delta
        self.accountant = Accountant()
        self.releases = 0
        self._sums: Tensors = {}
        self._norms: list[float] = []
        self._seen: list[float] = []

    def setup(self, setting: Setting) -> None:
        """Learn q; check what is_sent."""
        if buffers := sorted(setting.shared - setting.parameter_shapes.keys()):
            raise InputError(
                f"aggregator=private: the model has buffers ({buffers[0]}) that noise would break; "
                "take one without, such as model.norm=group"
            )
        population = int((setting.client_sizes > 0).sum())
        if self.delta >= 1 / population:
            raise InputError(
                f"aggregator.delta={self.delta}: must be below 1/{population}, "
                "one over the number of clients with data"
            )
        self.seed = setting.seed
        self.cohort = min(setting.clients_per_round, population)
        self.accountant.set(self.noise_multiplier, self.cohort / population)

    def add(self, update: Update, current: Tensors) -> None:
        """Fold in one clipped step. Raises InputError if the update holds more than weights."""
        if update.extras:
            raise InputError(
                f"aggregator=private: {' and '.join(sorted(update.extras))} would send more than "
                "weights, without noise; take parts that do not report"
            )
        step = steps(update.weights, current)
        norm = norm_of(step)
        self._norms.append(norm)
        scale = min(1.0, self.clip / norm) if norm > 0 else 1.0
        for name, value in step.items():
            self._sums[name] = self._sums.get(name, 0) + scale * value

    def contribution(self) -> Contribution:
        """The sums of clipped steps, and how long the steps were."""
        return Contribution(self._sums, self._norms)

    def set_reduced(self, sums: Tensors, items: Sequence[list[float]]) -> None:
        """The whole cohort's."""
        self._sums, self._norms = sums, list(chain(*items))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after one noisy step."""
        if not self._norms:
            return current
        self.releases += 1
        generator = torch_generator(self.seed, "privacy", self.releases)
        merged = {
            name: (value + self._noised(self._sums[name], generator) / self.cohort).to(value.dtype)
            for name, value in current.items()
        }
        self._sums, self._seen, self._norms = {}, self._norms, []
        return merged

    def metrics(self) -> dict[str, float]:
        """(epsilon, delta) of all that was released so far, and what was clipped of the cohort."""
        return {
            "privacy/epsilon": self.accountant.epsilon(self.releases, self.delta),
            "privacy/delta": self.delta,
            **clipping_metrics(self._seen, self.clip),
        }

    def server_state(self) -> dict[str, Any]:
        """How often something was released."""
        return {"releases": self.releases}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.releases = state["releases"]

    def _noised(self, total: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(total.shape, generator=generator, dtype=torch.float64)
        return total + self.noise_multiplier * self.clip * noise.to(total.device)
