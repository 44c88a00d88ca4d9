"""Training of a classifier at the server, on features that clients have sent."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedexp.core.client_protocol import Functional
from fedexp.core.messages import Tensors
from fedexp.core.transfer import to_device


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
    weights = {name: to_device(w, device).clone().requires_grad_() for name, w in weights.items()}
    for _ in range(epochs):
        order = to_device(torch.randperm(len(labels), generator=generator), device)
        for batch in torch.split(order, batch_size):
            loss = F.cross_entropy(classifier(weights, features[batch]), labels[batch])
            slopes = torch.autograd.grad(loss, list(weights.values()))
            steps = zip(weights.items(), slopes, strict=True)
            weights = {name: (w.detach() - lr * g).requires_grad_() for (name, w), g in steps}
    return {name: w.detach() for name, w in weights.items()}
