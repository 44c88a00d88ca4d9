"""FedProto: clients exchange class prototypes and nothing else."""

from typing import Literal

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import CLASS_PROTOTYPES, PRIVATE_BACKBONE
from fedexp.contract import Client, Loss, Memory, Network, PartMessage, Personalization, Setting


class PrototypesOnly(Personalization):
    """No weight is sent; prediction is by the nearest prototype (FedProto, AAAI 2022, Alg. 1).

    ``loss=prototype_align`` sends the prototypes. The predicted class is the class whose global
    prototype has the smallest Euclidean distance from the features. A class without a prototype is
    never predicted. The loss trains the head, but the head is not used for this prediction. The
    metrics ``personal/accuracy_head_*`` are the accuracy of the head.

    Args:
        score_with: the prototypes for prediction. "present" are the server's prototypes after the
            evaluated round. "received" are the prototypes that the client received for its last
            training, as in the study of FedNH (Dai et al., AAAI 2023).
    """

    takes_only_merged = True
    takes_tokens = False
    has_global = False
    traits = frozenset({PRIVATE_BACKBONE})
    needs = {
        CLASS_PROTOTYPES: "loss: personalization=prototypes_only sends only the loss's prototypes; "
        "use loss=prototype_align"
    }
    prototypes: Tensor
    holds: Tensor

    def __init__(self, score_with: Literal["present", "received"]) -> None:
        super().__init__()
        self._keeps_received = score_with == "received"

    def setup(self, setting: Setting) -> None:
        """Make buffers: prototypes [C, d], and a mask ``holds`` [C] of classes with a prototype."""
        empty = torch.zeros(setting.num_classes, setting.feature_dim)
        no_class = torch.zeros(len(empty), dtype=torch.bool)
        # Persistent buffers are stored with each client's personal model.
        self.register_buffer("prototypes", empty, persistent=self._keeps_received)
        self.register_buffer("holds", no_class, persistent=self._keeps_received)

    def create(self, network: Network, loss: Loss) -> None:
        """Store ``loss.get_buffer``, with which ``receive`` reads the prototypes of the loss."""
        # Do not store the loss itself: its weights would become weights of this module.
        self._buffer_of_loss = loss.get_buffer

    def shared(self, name: str) -> bool:
        """Always false, because no weight is shared."""
        return False

    def receive(self, message: PartMessage) -> None:
        """Copy the prototypes from the loss, which receives them before this part."""
        for name in ("prototypes", "holds"):
            self.get_buffer(name).copy_(self._buffer_of_loss(name))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """With ``score_with=received``, store the prototypes that the client receives."""
        if self._keeps_received:
            self.receive(message)

    def class_vectors(self) -> Tensor:
        """The prototypes [C, d]."""
        return self.prototypes

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """Logits [B, C]: minus the distance from the class's prototype, or -inf without one."""
        # Matrix products would be faster, but their rounding may reorder close prototypes.
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(z, self.prototypes, compute_mode=exact)
        return torch.where(self.holds, -distances, -torch.inf)
