"""The average of the clients' steps, times a step size that the round determines."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from fedexp.aggregators.average import Average
from fedexp.compatibility.traits import NOT_THE_MEAN
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.part import Setting
from fedexp.core.reducible import Contribution


class ServerStep(Average):
    """w <- w + eta_g D, D = sum_i p_i D_i, D_i the step of client i from w.

    p_i is client i's share in the average over the cohort. A step size of 1 gives the average to
    the bit. Steps are of the parameters; buffers are averaged. A subclass may replace D_i in
    ``add``; it defines one number for each client in ``quantity``, and ``step_size``.

    Metric: ``aggregator/step_size``, eta_g.

    Args:
        weighting: p_i is proportional to n_i (``samples``) or equal for all (``uniform``).
    """

    traits = frozenset({NOT_THE_MEAN})

    def __init__(self, weighting: Literal["samples", "uniform"]) -> None:
        super().__init__(weighting)
        self._quantities: list[float] = []
        self._step_size = 1.0

    def setup(self, setting: Setting) -> None:
        """Find which weights are parameters."""
        self.parameters = frozenset(setting.parameter_shapes)

    def quantity(self, update: Update | PartUpdate, current: Tensors) -> float:
        """The number of this client, whose mean determines the step size."""
        raise NotImplementedError

    def step_size(self, mean: float, step: Tensors) -> float:
        """eta_g.

        Args:
            mean: the mean of the clients' numbers, with weights p_i.
            step: D, float64.
        """
        raise NotImplementedError

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update to the sums, and its client's number."""
        before = self._total
        super().add(update, current)
        self._quantities.append((self._total - before) * self.quantity(update, current))

    def contribution(self) -> Contribution:
        """The sums of the average, and the weighted numbers of the clients."""
        average = super().contribution()
        return replace(average, items=(average.items, self._quantities))

    def set_reduced(self, sums: Tensors, items: Sequence[Any]) -> None:
        """Replace this process's sums and numbers by the totals over all processes."""
        averages, quantities = zip(*items, strict=True)
        super().set_reduced(sums, averages)
        self._quantities = list(chain(*quantities))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after the server's step."""
        if not self._total:
            return current
        start, total = self.only_parameters(current), self._total
        step = {name: self._sums[name] / total - value for name, value in start.items()}
        # fsum does not depend on the order of the clients
        mean = math.fsum(self._quantities) / total
        self._quantities = []
        self._step_size = self.step_size(mean, step)
        merged = super().merge(current)
        if self._step_size != 1:
            for name, value in start.items():
                merged[name] = (value + self._step_size * step[name]).to(value.dtype)
        return merged

    def metrics(self) -> dict[str, float]:
        """The server step size of the round."""
        return {"aggregator/step_size": self._step_size}

    def only_parameters(self, weights: Tensors) -> Tensors:
        """The weights that are parameters, not buffers."""
        return {name: value for name, value in weights.items() if name in self.parameters}
