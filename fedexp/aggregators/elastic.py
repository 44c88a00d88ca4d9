"""Elastic aggregation: a smaller step for parameters to which the model's outputs are sensitive."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor
from torch.func import grad

from fedexp.aggregators.average import Average, Weighting, of_aggregator
from fedexp.config.compatibility.traits import NOT_THE_MEAN
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Setting, Tensors, Update
from fedexp.core.named_tensors import prefixed
from fedexp.core.randomness import torch_generator
from fedexp.core.transfer import to_device

_OMEGA = "sensitivity"


class Elastic(Average):
    """The average step, scaled for each parameter by its sensitivity (Chen et al., CVPR 2023).

    The server's step is $w <- w + zeta D$ with $zeta = 1 + tau - Omega / max Omega$. D is the
    average step of the clients, and Omega the average of their sensitivities, both with the
    weights of FedAvg. So parameters without influence on the model's outputs take the step 1 + tau,
    and the most sensitive one takes the step tau.

    A client computes its sensitivities before training. For one batch x after another, it sets
    $Omega <- mu Omega + (1 - mu) |g|$, with Omega = 0 at first. g is the gradient of the squared
    norm of the model's logits, averaged over the batch, at the received weights. The model is in
    eval mode. Labels are not used. The batches hold all training samples in random order, and are
    not augmented. The client sends Omega, which doubles its upload. Buffers are averaged.

    The paper's text was not compared. FL-bench's version differs: its g is the gradient of the
    cross-entropy, it has one sensitivity for each tensor, the squared norm of g, and it divides by
    the largest sensitivity of a client in the cohort. It computes g on 30 % of the samples, which
    it then leaves out of training.

    Metric: ``aggregator/mean_coefficient``, the mean of zeta over all parameters.

    Args:
        tau: the step of the most sensitive parameter.
        mu: the share of the old value in the moving average of |g|.
        largest: max Omega is the largest element of the same ``tensor`` or of the whole ``model``.
        batch_size: the samples in a batch x.
        weighting: a client's weight in the averages; see ``Average``.
    """

    traits = frozenset({NOT_THE_MEAN})

    def __init__(
        self,
        tau: NonNegativeFloat,
        mu: Annotated[float, Field(ge=0, lt=1)],
        largest: Literal["tensor", "model"],
        batch_size: PositiveInt,
        weighting: Weighting,
    ) -> None:
        super().__init__(weighting)
        self.tau, self.mu, self.largest, self.batch_size = tau, mu, largest, batch_size
        self._mean_coefficient = 1.0

    def setup(self, setting: Setting) -> None:
        """Store the seed and the names of the parameters that clients send."""
        self._seed, self._names = setting.seed, sorted(setting.model.shared_parameters)

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute the sensitivities Omega of the received model."""
        weights = {name: client.weights[name].clone() for name in self._names}

        def square(weights: Tensors, inputs: Tensor) -> Tensor:
            logits = client.logits_with(weights, inputs)
            return logits.square().sum() / len(inputs)

        omega = {name: torch.zeros_like(value) for name, value in weights.items()}
        for inputs in self._batches(client) if weights else ():
            gradient: Tensors = grad(square)(weights, inputs)
            omega = {
                name: self.mu * value + (1 - self.mu) * gradient[name].abs()
                for name, value in omega.items()
            }
        memory.update(omega)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The sensitivities Omega: parameter name -> tensor of its shape."""
        return {name: memory.pop(name) for name in self._names}

    def _batches(self, client: Client) -> Iterator[Tensor]:
        """The inputs of the client's training samples, in random order."""
        draws = torch_generator(self._seed, "sensitivity", client.round, client.data.client)
        order = torch.randperm(client.data.num_samples, generator=draws)
        for positions in torch.split(to_device(order, client.device), self.batch_size):
            yield client.data.inputs(positions)

    # The server's half.

    def add(self, update: Update | PartUpdate, current: Tensors) -> None:
        """Add a client's model and sensitivities to the sums."""
        own = of_aggregator(update)
        both = own.weights | prefixed(_OMEGA, own.extras)
        self.add_weighted(replace(own, weights=both), self.factor(own))

    def merge(self, current: Tensors) -> Tensors:
        """The current weights after the server's step."""
        if not self.total:
            return super().merge(current)
        omega = {name: self._sums.pop(f"{_OMEGA}/{name}") / self.total for name in self._names}
        steps = {name: self._sums[name] / self.total - current[name] for name in self._names}
        zeta = coefficients(omega, self.tau, self.largest)
        merged = super().merge(current)
        for name, step in steps.items():
            start = current[name]
            merged[name] = (start + zeta[name] * step).to(start.dtype)
        if zeta:
            self._mean_coefficient = (
                torch.cat([each.flatten() for each in zeta.values()]).mean().item()
            )
        return merged

    def metrics(self) -> dict[str, float]:
        """The mean of zeta over all parameters."""
        return {"aggregator/mean_coefficient": self._mean_coefficient}


def coefficients(omega: Tensors, tau: float, largest: Literal["tensor", "model"]) -> Tensors:
    """The coefficients zeta = 1 + tau - Omega / max Omega: parameter name -> tensor of its shape.

    If max Omega is 0, zeta is 1 + tau.

    Args:
        omega: parameter name -> its sensitivities, at least 0.
        tau: the coefficient of the most sensitive element.
        largest: whether max Omega is over the ``tensor`` or over the whole ``model``.
    """
    highest = {name: value.max() for name, value in omega.items()}
    if largest == "model" and omega:
        highest = dict.fromkeys(omega, torch.stack(list(highest.values())).max())
    return {
        name: 1 + tau - torch.where(highest[name] > 0, value / highest[name], 0.0)
        for name, value in omega.items()
    }
