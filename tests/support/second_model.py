"""A plain PyTorch loop over a client's local batches, with gradients at any weights."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from fedexp.core.messages import Tensors
from fedexp.runtime.federation import Federation

Gradient = Callable[[Tensors], Tensors]


def gradients_of_steps(
    federation: Federation, round: int, batch_size: int, epochs: int, client: int = 0
) -> Iterator[Gradient]:
    """For each local step of the client, weights -> the gradient of the cross-entropy there."""
    model: Any = federation.engine.resources.load_global(federation.server.broadcast(round))
    batches = federation.data.clients[client].local_batches(round, batch_size)
    for _ in range(epochs):
        for inputs, targets in batches:

            def at(weights: Tensors, inputs: Any = inputs, targets: Any = targets) -> Tensors:
                point = {n: w.detach().requires_grad_() for n, w in weights.items()}
                logits = torch.func.functional_call(model, point, (inputs,))
                found = torch.autograd.grad(F.cross_entropy(logits, targets), list(point.values()))
                return dict(zip(point, found, strict=True))

            yield at


def steps_of_sgd(start: Tensors, gradients: Iterable[Gradient]) -> Tensors:
    """The weights after a step of the default optimizer with each of the gradients."""
    w = {name: value.detach().clone() for name, value in start.items()}
    speed = {name: torch.zeros_like(value) for name, value in w.items()}
    for gradient in gradients:
        slopes = gradient(w)
        speed = {n: 0.9 * speed[n] + slopes[n] + 1e-5 * w[n] for n in w}
        w = {n: w[n] - 0.02 * speed[n] for n in w}
    return w


def of_model(weights: Tensors) -> Tensors:
    """The weights of backbone and head."""
    return {n: w for n, w in weights.items() if n.startswith(("backbone.", "head."))}
