"""From raw inputs to probabilities: the part of a trained model that predicts."""

import torch
from torch import Tensor, nn

from fedexp.core.client import ClientModule
from fedexp.core.forward import at_least_float32
from fedexp.data.preparations.preparation import Preparation


class Network(nn.Module):
    """Preparation, backbone, head and softmax; a personal model also personalizes the logits.

    Args:
        preparation: turns the tensor of raw inputs into the backbone's inputs.
        model: the trained model; this network uses the model's modules without copying them.
        personal: whether ``model`` is a client's personal model.
    """

    def __init__(self, preparation: Preparation, model: ClientModule, personal: bool) -> None:
        super().__init__()
        self.preparation = preparation
        self.backbone, self.head = model.backbone, model.head
        self.personalization = model.personalization if personal else None

    def forward(self, raw: Tensor) -> Tensor:
        """Probabilities [n, C], or [n, L, C] of L tokens, for the tensor of raw inputs."""
        z = at_least_float32(self.backbone(self.preparation.prepare(raw)))
        logits: Tensor = self.head(z)
        if self.personalization is not None:
            logits = self.personalization.personalize(z, logits)
        return torch.softmax(logits, dim=-1)
