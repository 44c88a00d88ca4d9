"""FedExP: the server takes a longer step when the clients' steps disagree."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from pydantic import PositiveFloat

from fedexp.aggregators.average import Average
from fedexp.aggregators.clipping import norm_of, steps
from fedexp.compatibility.traits import NOT_THE_MEAN
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution


class ServerExtrapolation(Average):
    """w <- w + eta_g D, D = sum_i p_i D_i (FedExP; Jhunjhunwala et al., ICLR 2023, Alg. 1).

    D_i = w_i - w is the step of client i, p_i its share in the average over the cohort. The server
    step size is eta_g = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + epsilon))). With p_i = 1/M this
    is sum_i ||D_i||^2 / (2 M (||D||^2 + epsilon)). Opposed steps give a large eta_g, equal steps
    give FedAvg. Steps and norms are of the parameters; buffers are averaged.

    Metric: ``aggregator/step_size``, eta_g.

    Args:
        weighting: p_i is proportional to n_i (``samples``) or equal for all (``uniform``).
        epsilon: a bound on eta_g where the steps cancel. The authors' released code has M epsilon
            in its place and multiplies epsilon by 0.998^2 in each round.
    """

    traits = frozenset({NOT_THE_MEAN})

    def __init__(self, weighting: Literal["samples", "uniform"], epsilon: PositiveFloat) -> None:
        super().__init__(weighting)
        self.epsilon = epsilon
        self._squares: list[float] = []
        self._step_size = 1.0

    def setup(self, setting: Setting) -> None:
        """Find which weights are parameters."""
        self.parameters = setting.parameter_shapes.keys()

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update to the sums, and the square of its step's norm."""
        before = self._total
        super().add(update, current)
        step = steps(update.weights, self._only_parameters(current))
        self._squares.append((self._total - before) * norm_of(step) ** 2)

    def contribution(self) -> Contribution:
        """The sums of the average, and the weighted squares of the norms."""
        average = super().contribution()
        return replace(average, items=(average.items, self._squares))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's sums and squares by the totals over all processes."""
        averages, squares = zip(*items, strict=True)
        super().set_reduced(sums, averages)
        self._squares = list(chain(*squares))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after the server's step."""
        if not self._total:
            return current
        start, total = self._only_parameters(current), self._total
        step = {name: self._sums[name] / total - value for name, value in start.items()}
        # fsum does not depend on the order of the clients
        square = math.fsum(self._squares) / total
        self._squares = []
        self._step_size = max(1.0, square / (2 * (norm_of(step) ** 2 + self.epsilon)))
        merged = super().merge(current)
        if self._step_size > 1:
            for name, value in start.items():
                merged[name] = (value + self._step_size * step[name]).to(value.dtype)
        return merged

    def metrics(self) -> dict[str, float]:
        """The server step size of the round."""
        return {"aggregator/step_size": self._step_size}

    def _only_parameters(self, weights: Tensors) -> Tensors:
        return {name: value for name, value in weights.items() if name in self.parameters}
