"""How far local training moves a parameter for each unit of its gradient."""

import torch
from torch import nn
from torch.optim import Optimizer

from fedexp.core.client_protocol import Client


def unit_distance(optimizer: Optimizer, steps: int, pull: float = 0.0) -> float:
    """How far a constant gradient of 1 moves a parameter in ``steps`` steps at learning rate 1.

    With SGD a parameter moves by a weighted sum of its gradients; the result is the sum of these
    weights (||a_i||_1 of Wang et al., NeurIPS 2020). Without momentum and pull, and for other
    optimizers, it is ``steps``.

    Args:
        optimizer: the local optimizer; its state is not used.
        steps: tau, the number of steps.
        pull: learning rate times mu, if the loss has the penalty (mu/2) ||w - start||^2.
    """
    if not isinstance(optimizer, torch.optim.SGD):
        return steps
    options = optimizer.defaults
    momentum, nesterov = options["momentum"], options["nesterov"]
    if not momentum and not pull:
        return steps
    velocity = distance = 0.0
    for step in range(steps):
        damping = options["dampening"] if momentum and step else 0  # the first step is not damped
        gradient = 1 - pull * distance
        velocity = momentum * velocity + (1 - damping) * gradient
        distance += gradient + momentum * velocity if nesterov else velocity
    return distance


def optimizer_of(client: Client) -> Optimizer:
    """A local optimizer of this round over a one-element parameter, for ``unit_distance``."""
    return client.optimizer_for([nn.Parameter(torch.zeros(1))])
