"""The base of aggregators whose server step is the average step times a step size eta_g."""

import math

from fedexp.aggregators.average import Average, Weighting, of_aggregator
from fedexp.aggregators.clipping import MEASURES_STEPS, norm_of, steps
from fedexp.config.compatibility.traits import NOT_THE_MEAN
from fedexp.contract import PartUpdate, Setting, Tensors, Update


class ServerStep(Average):
    """Moves the global weights by the average step of the clients times a step size eta_g.

    The update of the global weights w is w <- w + eta_g D with the average step
    D = sum_k a_k D_k / sum_k a_k. D_k is the step of client k from w. A subclass computes one
    number for each client in ``summand``. In ``step_size`` it computes eta_g from the sum of these
    numbers. In ``add`` it may replace D_k. With eta_g = 1 the result equals that of ``Average`` to
    the bit. Only parameters have steps; buffers are averaged.

    Metric: ``aggregator/step_size``, eta_g.

    Args:
        weighting: with ``samples`` a_k is the number of samples n_k; with ``uniform`` it is 1.
    """

    traits = frozenset({NOT_THE_MEAN})
    discourages = MEASURES_STEPS

    def __init__(self, weighting: Weighting) -> None:
        super().__init__(weighting)
        self._step_size = 1.0

    def setup(self, setting: Setting) -> None:
        """Find which weights are parameters."""
        self.parameters = frozenset(setting.model.parameters)

    def summand(self, update: PartUpdate, current: Tensors) -> float:
        """Compute a number for this client; ``step_size`` gets the sum over the cohort."""
        raise NotImplementedError

    def step_size(self, total: float, step: Tensors) -> float:
        """Compute eta_g of this round.

        Args:
            total: the sum of the clients' summands. (``self.total`` is sum_k a_k.)
            step: the average step D: name of a parameter -> float64 tensor.
        """
        raise NotImplementedError

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add one update to the sums, and store the number that ``summand`` computes for it."""
        super().add(update, current)
        self.numbers.append(self.summand(of_aggregator(update), current))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after the server's step."""
        # fsum does not depend on the order of the clients
        total = math.fsum(self.numbers)
        if not self.total:
            return super().merge(current)
        start = self.only_parameters(current)
        step = {name: self._sums[name] / self.total - value for name, value in start.items()}
        self._step_size = self.step_size(total, step)
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

    def square(self, update: PartUpdate, current: Tensors) -> float:
        """The squared norm ||D_k||^2 of the client's step D_k, over parameters only."""
        return norm_of(steps(update.weights, self.only_parameters(current))) ** 2
