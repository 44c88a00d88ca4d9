"""FedROD: one body, a generic head for all, a private one that adds what a client is like."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.core.forward import Forward
from fedexp.core.sockets import Personalization


class FedROD(Personalization):
    """Personal logits = generic logits + h_k z, h_k linear (Chen and Chao, ICLR 2022).

    h_k is fitted by the cross-entropy of the personal logits, as a constant function of features
    and generic logits: body and generic head have the gradient of the loss alone, which in the
    paper is the balanced softmax. It starts from zero, where both models agree. With
    ``local.grad_clip``, though, the norm that is clipped is over all gradients.
    """

    def create(self, feature_dim: int, num_classes: int) -> None:
        """h_k."""
        self.head = nn.Linear(feature_dim, num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def shared(self, name: str) -> bool:
        """All but h_k."""
        return not name.startswith("personalization.")

    def term(self, batch: Forward) -> Tensor:
        """The private head's loss, a scalar."""
        logits = self.personalize(batch.z.detach(), batch.logits.detach())
        return batch.mean(F.cross_entropy(logits, batch.targets, reduction="none"))

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """The sum of both heads' logits, [B, C]."""
        added: Tensor = self.head(z)
        return logits + added
