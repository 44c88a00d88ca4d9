"""FedProto: clients exchange class prototypes and nothing else."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from fedexp.core.compatibility import CLASS_PROTOTYPES
from fedexp.core.messages import Message
from fedexp.core.part import Setting
from fedexp.core.sockets import Personalization


class PrototypesOnly(Personalization):
    """No weight is sent; the nearest global prototype is predicted (FedProto, AAAI 2022, Alg. 1).

    The prototypes are those that ``loss=prototype_align`` sends, the distance is Euclidean. A class
    without a prototype is never predicted. The head is trained, for the loss, but does not predict.
    """

    has_global = False
    needs = MappingProxyType(
        {
            CLASS_PROTOTYPES: "loss: personalization=prototypes_only sends the loss's prototypes "
            "and nothing else; should be prototype_align"
        }
    )
    prototypes: Tensor
    holds: Tensor

    def setup(self, setting: Setting) -> None:
        """Buffers for the prototypes [C, d], and for which classes have one [C]."""
        empty = torch.zeros(setting.num_classes, setting.feature_dim)
        self.register_buffer("prototypes", empty, persistent=False)
        self.register_buffer("holds", torch.zeros(len(empty), dtype=torch.bool), persistent=False)

    def shared(self, name: str) -> bool:
        """Nothing."""
        return False

    def receive(self, message: Message) -> None:
        """Store the loss's prototypes."""
        for name, tensor in message.extras.get("loss", {}).items():
            self.get_buffer(name).copy_(tensor)

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """Minus the distance from each prototype, [B, C]."""
        # Matrix products would be faster, but their rounding may reorder close prototypes.
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(z, self.prototypes, compute_mode=exact)
        return torch.where(self.holds, -distances, -torch.inf)
