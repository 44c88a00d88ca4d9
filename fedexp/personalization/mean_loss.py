"""The mean cross-entropy of a model on some of a client's data."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.config.compatibility.traits import DERIVES_CLASSIFIER
from fedexp.contract import Client, LocalData, Tensors
from fedexp.core.token_rows import scored_rows

ONE_CLASSIFIER = {
    DERIVES_CLASSIFIER: "{other}: computes its classifier from class means; all models that a "
    "client compares would have the same one; with this personalization take another {other}"
}
"""``forbids`` of personalizations in which a client compares models by their ``mean_loss``."""


@torch.no_grad()
def mean_loss(client: Client, data: LocalData, weights: Tensors) -> Tensor:
    """Compute a model's mean cross-entropy over the samples of ``data``, a scalar, in eval mode.

    The samples are not augmented. If each token has a target, the mean is over the tokens.

    Args:
        client: the client in its turn.
        data: the client's data or a subset of them.
        weights: name -> weights of the model; the others are the client's present weights.
    """
    losses = []
    for inputs, targets in data.batches(1000):
        labels, logits = scored_rows(targets, client.logits_with(weights, inputs))
        losses.append(F.cross_entropy(logits, labels, reduction="none"))
    return torch.cat(losses).mean()
