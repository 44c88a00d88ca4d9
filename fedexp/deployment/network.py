"""The prediction of a trained model, from raw inputs to class probabilities."""

import torch
from torch import Tensor, nn

from fedexp.core.client import ClientModule
from fedexp.core.forward import at_least_float32
from fedexp.data.preparations.preparation import Preparation


class Network(nn.Module):
    """Turns raw inputs into class probabilities, by preparation, backbone, head and softmax.

    If the model is personal, its personalization part also changes the logits before the softmax.

    Args:
        preparation: turns a tensor of raw inputs into the inputs of the backbone.
        model: the trained model, whose modules this network uses without a copy.
        personal: whether ``model`` is a client's personal model.
    """

    def __init__(self, preparation: Preparation, model: ClientModule, personal: bool) -> None:
        super().__init__()
        self.preparation = preparation
        self.backbone, self.head = model.backbone, model.head
        self.personalization = model.personalization if personal else None

    def forward(self, raw: Tensor) -> Tensor:
        """The class probabilities of n raw inputs: [n, C], or [n, L, C] if each has L tokens."""
        z = at_least_float32(self.backbone(self.preparation.prepare(raw)))
        logits: Tensor = self.head(z)
        if self.personalization is not None:
            logits = self.personalization.personalize(z, logits)
        return torch.softmax(logits, dim=-1)
