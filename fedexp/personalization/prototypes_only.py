"""FedProto: clients exchange class prototypes and nothing else."""

from typing import Literal

import torch
from torch import Tensor

from fedexp.config.compatibility.traits import CLASS_PROTOTYPES
from fedexp.contract import Client, Loss, Memory, Network, PartMessage, Setting, Tensors
from fedexp.core.prototypes import class_prototypes
from fedexp.personalization.local import Local


class PrototypesOnly(Local):
    """No weight is sent; prediction is by the nearest prototype (FedProto, AAAI 2022, Alg. 1).

    The loss sends the prototypes, such as ``loss=prototype_align``. The predicted class is the
    class whose prototype has the smallest Euclidean distance from the features. A class without a
    prototype is never predicted. The loss may train the head, but the head is not used for this
    prediction. The metrics ``personal/accuracy_head_*`` are the accuracy of the head.

    Args:
        score_with: the prototypes for prediction. "present" are the server's prototypes after the
            evaluated round. "received" are the prototypes that the client received for its last
            training, as in the study of FedNH (Dai et al., AAAI 2023). "own" are the means of the
            client's own features after its last training.
    """

    takes_only_merged = True
    takes_tokens = False
    needs = {
        CLASS_PROTOTYPES: "loss: personalization=prototypes_only sends only the loss's prototypes; "
        "use loss=prototype_align or loss=prototype_contrast"
    }
    prototypes: Tensor
    holds: Tensor

    def __init__(self, score_with: Literal["present", "received", "own"]) -> None:
        super().__init__()
        self.score_with = score_with

    def setup(self, setting: Setting) -> None:
        """Make buffers: prototypes [C, d], and a mask ``holds`` [C] of classes with a prototype."""
        empty = torch.zeros(setting.num_classes, setting.feature_dim)
        no_class = torch.zeros(len(empty), dtype=torch.bool)
        # Persistent buffers are stored with each client's personal model.
        is_kept = self.score_with != "present"
        self.register_buffer("prototypes", empty, persistent=is_kept)
        self.register_buffer("holds", no_class, persistent=is_kept)

    def create(self, network: Network, loss: Loss) -> None:
        """Store the functions with which the loss computes features and has its prototypes."""
        # Do not store the loss itself: its weights would become weights of this module.
        self._buffer_of_loss = loss.get_buffer
        self._embed = getattr(loss, "embed", lambda z: z)

    def receive(self, message: PartMessage) -> None:
        """Copy the prototypes from the loss, which receives them before this part."""
        for name in ("prototypes", "holds"):
            self.get_buffer(name).copy_(self._buffer_of_loss(name))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """With ``score_with=received``, store the prototypes that the client receives."""
        if self.score_with == "received":
            self.receive(message)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """With ``score_with=own``, store the client's prototypes. Nothing is sent."""
        if self.score_with == "own":
            z, labels = client.features()
            means, counts = class_prototypes(self._embed(z), labels, len(self.prototypes))
            self.prototypes.copy_(means)
            self.holds.copy_(counts > 0)
        return {}

    def class_vectors(self) -> Tensor:
        """The prototypes [C, d]."""
        return self.prototypes

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """Logits [B, C]: minus the distance from the class's prototype, or -inf without one."""
        # Matrix products would be faster, but their rounding may reorder close prototypes.
        exact = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(self._embed(z), self.prototypes, compute_mode=exact)
        return torch.where(self.holds, -distances, -torch.inf)
