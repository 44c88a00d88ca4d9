"""FedProto's loss: features near the mean of what the cohort's features of their class are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.compatibility import CLASS_PROTOTYPES
from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory, Setting
from fedexp.core.prototypes import class_prototypes
from fedexp.core.sockets import Loss
from fedexp.losses.semantic import cpdr


def mean_prototypes(prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The clients' prototypes, each class's mean by samples (Tan et al., AAAI 2022, Eq. 6).

    Args:
        prototypes: [K, C, d]; what stands at classes that a client does not hold has no weight.
        counts: [K, C] samples of each class at each client.

    Returns:
        prototypes [C, d], summed in float64, zero where ``holds`` is false; holds [C] bool:
        whether anyone holds the class.
    """
    total = counts.sum(dim=0)
    shares = counts.double() / total.clamp(min=1)
    means = torch.einsum("kc,kcd->cd", shares, prototypes.double())
    return means.to(prototypes.dtype), total > 0


class PrototypeAlign(Loss):
    """Cross-entropy + lam * mean squared difference of z from its class's global prototype.

    The loss of FedProto (Tan et al., AAAI 2022). Prototypes are class means of features
    after local training. Samples whose class has no prototype are left out of the second mean;
    until the server has any, in the first round, the loss is the cross-entropy alone.

    Args:
        lam: weight of the second term.
    """

    traits = frozenset({CLASS_PROTOTYPES})
    prototypes: Tensor
    holds: Tensor

    def __init__(self, lam: NonNegativeFloat) -> None:
        super().__init__()
        self.lam = lam
        self._known: Tensors = {}

    def setup(self, setting: Setting) -> None:
        """Buffers for what the server sends: ``prototypes`` [C, d], and which it ``holds`` [C]."""
        self.num_classes = setting.num_classes
        empty = torch.zeros(setting.num_classes, setting.feature_dim)
        self.register_buffer("prototypes", empty, persistent=False)
        self.register_buffer("holds", torch.zeros(len(empty), dtype=torch.bool), persistent=False)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        loss = batch.mean(F.cross_entropy(batch.logits, batch.targets, reduction="none"))
        return loss + self.lam * cpdr(
            batch.z, batch.targets, self.prototypes, self.holds, real=batch.real
        )

    def broadcast(self, round: int) -> Tensors:
        """The prototypes; nothing before the first reports."""
        return dict(self._known)

    def receive(self, message: Message) -> None:
        """Take over the prototypes."""
        self.holds.fill_(False)
        for name, tensor in message.extras.get("loss", {}).items():
            self.get_buffer(name).copy_(tensor)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The class prototypes of the trained model's features, and the class counts."""
        prototypes, counts = class_prototypes(*client.features(), self.num_classes)
        return {"prototypes": prototypes, "counts": counts}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """New prototypes for every class that somebody in the cohort holds."""
        if not updates:
            return
        # In the order of the clients, so that the sums do not depend on who came first.
        reports = [u.extras["loss"] for u in sorted(updates, key=lambda update: update.client)]
        prototypes, holds = mean_prototypes(
            torch.stack([report["prototypes"] for report in reports]),
            torch.stack([report["counts"] for report in reports]),
        )
        if self._known:
            old = {name: tensor.to(holds.device) for name, tensor in self._known.items()}
            prototypes = torch.where(holds.unsqueeze(1), prototypes, old["prototypes"])
            holds = holds | old["holds"]
        self._known = {"prototypes": prototypes, "holds": holds}

    def server_state(self) -> Tensors:
        """The prototypes."""
        return dict(self._known)

    def load_server_state(self, state: Tensors) -> None:
        """Take them back."""
        self._known = dict(state)
