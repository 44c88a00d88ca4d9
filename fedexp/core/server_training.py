"""Training of a classifier at the server, on features that clients have sent."""

import logging
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp.core.client_protocol import Functional
from fedexp.core.messages import Tensors
from fedexp.core.transfer import to_device

LOGGER = logging.getLogger(__name__)


def diverged(trained: Iterable[Tensor]) -> bool:
    """Whether a classifier's tensors have NaN or infinity after training at the server.

    If so, a warning says that the training is undone: the caller then keeps the tensors from before
    it. Otherwise all updates of clients that go on from such tensors would be refused, and the
    server could never leave them.
    """
    if bool(torch.stack([value.isfinite().all() for value in trained]).all()):
        return False
    LOGGER.warning(
        "the server's training of a classifier diverged and is undone; try a smaller learning rate "
        "of the server"
    )
    return True


def train_classifier(
    classifier: Functional,
    weights: Tensors,
    features: Tensor,
    labels: Tensor,
    epochs: int,
    batch_size: int,
    lr: float,
    generator: Generator,
) -> Tensors:
    """Train with cross-entropy and plain SGD over shuffled batches, and return the weights.

    If training diverges to NaN or infinity, the initial weights are returned and a warning is
    logged.

    Args:
        classifier: the logits as a function of weights and features.
        weights: name -> initial parameter; they do not change.
        features: [n, d].
        labels: [n] classes of the features.
        epochs: passes over all features.
        batch_size: number of features in a step.
        lr: learning rate.
        generator: draws the order of the features.
    """
    device = features.device
    before = {name: to_device(w, device).clone() for name, w in weights.items()}
    weights = {name: w.detach().requires_grad_() for name, w in before.items()}
    for _ in range(epochs):
        order = to_device(torch.randperm(len(labels), generator=generator), device)
        for batch in torch.split(order, batch_size):
            loss = F.cross_entropy(classifier(weights, features[batch]), labels[batch])
            slopes = torch.autograd.grad(loss, list(weights.values()))
            steps = zip(weights.items(), slopes, strict=True)
            weights = {name: (w.detach() - lr * g).requires_grad_() for (name, w), g in steps}
    trained = {name: w.detach() for name, w in weights.items()}
    return before if diverged(trained.values()) else trained
