"""The loss of a client's current model on its training data."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.client_protocol import Client


@torch.no_grad()
def training_loss(client: Client) -> Tensor:
    """Mean cross-entropy over all training samples, in eval mode, a float32 scalar.

    In ``begin`` this is the loss of the model that local training starts from.
    """
    z, targets = client.features()
    return F.cross_entropy(client.classify(z), targets).float()
