"""The base of rules that lengthen or shorten the step to the cohort's average."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from fedexp.aggregators.average import Average, of_aggregator
from fedexp.aggregators.clipping import norm_of, steps
from fedexp.compatibility.traits import NOT_THE_MEAN
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution


class ScaledAverage(Average):
    """w <- w + eta_g D, D = sum_k a_k D_k / sum_k a_k, D_k = w_k - w.

    A subclass chooses the server's step size eta_g from the squared lengths ||D_k||^2. Steps and
    lengths are of the parameters; buffers are averaged. With eta_g = 1 the result is ``Average``'s
    to the bit.

    Metric: ``aggregator/step_size``, eta_g.
    """

    traits = frozenset({NOT_THE_MEAN})

    def __init__(self, weighting: Literal["samples", "uniform"]) -> None:
        super().__init__(weighting)
        self._squares: list[float] = []
        self._step_size = 1.0

    def step_size(self, squares: float, step: Tensors) -> float:
        """eta_g of this round.

        Args:
            squares: sum_k b_k ||D_k||^2, with b_k from ``square_factor``.
            step: D; name of a parameter -> float64 tensor.
        """
        raise NotImplementedError

    def square_factor(self, update: PartUpdate) -> float:
        """b_k, by default a_k."""
        return self.factor(update)

    def setup(self, setting: Setting) -> None:
        """Find which weights are parameters."""
        self.parameters = setting.parameter_shapes.keys()

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update to the sums, and the square of its step's length."""
        super().add(update, current)
        step = steps(update.weights, self._only_parameters(current))
        factor = self.square_factor(of_aggregator(update))
        self._squares.append(factor * norm_of(step) ** 2)

    def contribution(self) -> Contribution:
        """The sums of the average, and the weighted squares of the lengths."""
        average = super().contribution()
        return replace(average, items=(average.items, self._squares))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's sums and squares by the totals over all processes."""
        averages, squares = zip(*items, strict=True)
        super().set_reduced(sums, averages)
        self._squares = list(chain(*squares))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after the server's step."""
        # fsum does not depend on the order of the clients
        squares, self._squares = math.fsum(self._squares), []
        if not self.total:
            return super().merge(current)
        start = self._only_parameters(current)
        step = {name: self._sums[name] / self.total - value for name, value in start.items()}
        self._step_size = self.step_size(squares, step)
        merged = super().merge(current)
        if self._step_size != 1:
            for name, value in start.items():
                merged[name] = (value + self._step_size * step[name]).to(value.dtype)
        return merged

    def metrics(self) -> dict[str, float]:
        """The server step size of the round."""
        return {"aggregator/step_size": self._step_size}

    def _only_parameters(self, weights: Tensors) -> Tensors:
        return {name: value for name, value in weights.items() if name in self.parameters}
