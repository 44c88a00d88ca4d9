"""FedROD: the logits of a private head are added to those of the shared generic head."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.config.compatibility.traits import LINEAR_HEAD
from fedexp.contract import Client, Forward, Loss, Memory, Network, Personalization, Phase
from fedexp.core.messages import PartMessage
from fedexp.errors import InputError
from fedexp.heads.linear import Linear

_HYPERNETWORK = "personalization.hypernetwork."


class FedROD(Personalization):
    """Personal logits are generic logits plus private logits $h_k(z)$ (Chen and Chao, ICLR 2022).

    The shared head, called generic, computes the generic logits. The linear head h_k is private to
    client k. The loss of h_k is the cross-entropy of the personal logits. In this loss the features
    z and the generic logits are detached. So only the part in the loss socket trains the backbone
    and the generic head. In the paper this part is the balanced softmax.

    Args:
        private_head: h_k. "linear" has a bias and starts from zero. "copy" has no bias and starts
            as a copy of the initial generic head. With "hypernetwork" h_k(z) = z V_k. A network
            Linear(C, d)-ReLU-Linear(d, d C) computes V_k [d, C] from the client's class shares [C].
            This network is shared and averaged like the body.
        second_phase: with "none" h_k is trained together with the other weights, and
            ``local.grad_clip`` uses the norm of all gradients. With "local" h_k is trained after
            the other weights for ``local.epochs``, while backbone and generic head are frozen.
            "plain_sgd" differs from "local" only in the optimizer: SGD without momentum and weight
            decay.
        clip_second_phase: whether ``local.grad_clip`` clips the gradients in the second phase.
    """

    unread_if = {"clip_second_phase": {"second_phase": ("none",), "local.grad_clip": (None,)}}

    takes_tokens = False
    shares: Tensor

    def __init__(
        self,
        private_head: Literal["linear", "copy", "hypernetwork"],
        second_phase: Literal["none", "local", "plain_sgd"],
        clip_second_phase: bool,
    ) -> None:
        super().__init__()
        if second_phase == "none" and not clip_second_phase:
            raise InputError(
                "personalization.clip_second_phase=false: there is no second phase; "
                "use personalization.second_phase=local or plain_sgd"
            )
        if private_head == "copy":
            self.needs = {LINEAR_HEAD: "head: personalization.private_head=copy needs head=linear"}
        self.private_head, self.second_phase = private_head, second_phase
        self._clip_second_phase = clip_second_phase

    def create(self, network: Network, loss: Loss) -> None:
        """Make the private head h_k, or the hypernetwork that computes it from the class shares.

        The hypernetwork has a buffer for the client's class shares.
        """
        feature_dim, num_classes = network.feature_dim, network.num_classes
        if self.private_head == "hypernetwork":
            self.hypernetwork = nn.Sequential(
                nn.Linear(num_classes, feature_dim),
                nn.ReLU(),
                nn.Linear(feature_dim, feature_dim * num_classes),
            )
            # The buffer is persistent, because a stored personal model needs it.
            self.register_buffer("shares", torch.zeros(num_classes))
            return
        self.head = nn.Linear(feature_dim, num_classes, bias=self.private_head == "linear")
        if self.private_head == "linear":
            nn.init.zeros_(self.head.weight)
            nn.init.zeros_(self.head.bias)
        else:
            assert isinstance(network.head, Linear)
            self.head.load_state_dict({"weight": network.head.linear.weight.detach()})

    def shared(self, name: str) -> bool:
        """Whether the weight is shared: all weights are, except h_k and the class shares."""
        return name.startswith(_HYPERNETWORK) or not name.startswith("personalization.")

    def phases(self, epochs: float) -> Sequence[Phase]:
        """One phase if ``second_phase`` is ``none``; else first the generic model, then h_k."""
        if self.second_phase == "none":
            return (Phase(epochs),)
        generic = ("backbone.", "head.", "loss.")
        second = Phase(
            epochs,
            trainable=("personalization.",),
            eval_mode=generic,
            plain_sgd=self.second_phase == "plain_sgd",
            clipped=self._clip_second_phase,
        )
        return (Phase(epochs, trainable=generic), second)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the client's class shares, the input of the hypernetwork."""
        if self.private_head == "hypernetwork":
            counts = client.data.class_counts
            self.shares.copy_(counts / counts.sum())

    def term(self, batch: Forward) -> Tensor:
        """The private head's loss, a scalar."""
        logits = self.personalize(batch.z.detach(), batch.logits.detach())
        return batch.mean(F.cross_entropy(logits, batch.targets, reduction="none"))

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """The sum of the generic head's and the private head's logits, [B, C]."""
        if self.private_head == "hypernetwork":
            weight: Tensor = self.hypernetwork(self.shares)
            return logits + z @ weight.reshape(z.shape[-1], -1)
        added: Tensor = self.head(z)
        return logits + added
