"""FedProto's loss: cross-entropy and the distance of features from their class's prototype."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.compatibility import CLASS_PROTOTYPES
from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.randomness import torch_generator
from fedexp.losses.prototype_loss import PrototypeLoss
from fedexp.losses.semantic import cpdr

Weighting = Literal["samples", "uniform"]


def mean_prototypes(
    prototypes: Tensor, counts: Tensor, weighting: Weighting = "samples"
) -> tuple[Tensor, Tensor]:
    """Each class's mean over the clients that hold it (Tan et al., AAAI 2022, Eq. 6).

    Args:
        prototypes: [K, C, d]; the rows of classes that a client does not hold have no weight.
        counts: [K, C] samples of each class at each client.
        weighting: ``samples``: a client's weight is its samples of the class; ``uniform``: 1.

    Returns:
        prototypes [C, d], summed in float64, zero where ``holds`` is false; holds [C] bool:
        whether any client holds the class.
    """
    weights = counts if weighting == "samples" else (counts > 0).long()
    total = weights.sum(dim=0)
    shares = weights.double() / total.clamp(min=1)
    means = torch.einsum("kc,kcd->cd", shares, prototypes.double())
    return means.to(prototypes.dtype), total > 0


class PrototypeAlign(PrototypeLoss):
    """Cross-entropy + lam * mean squared difference of z from its class's global prototype.

    The loss of FedProto (Tan et al., AAAI 2022). Samples whose class has no prototype are left out
    of the second mean; without any prototype the loss is the cross-entropy.

    Args:
        lam: weight of the second term.
        weighting: as in ``mean_prototypes``.
        first: the prototypes of the first round: ``none``, or ``random``, uniform in [0, 1]^d.
        features: a client's prototypes are the class means of the features of its training data:
            ``trained``, under the trained model in eval mode, without augmentation; ``last_epoch``,
            as computed in the steps of the last local epoch, in train mode, with augmentation,
            while the weights change (the study of FedNH, Dai et al., AAAI 2023).
    """

    traits = frozenset({CLASS_PROTOTYPES})
    prototypes: Tensor
    holds: Tensor

    def __init__(
        self,
        lam: NonNegativeFloat,
        weighting: Weighting,
        first: Literal["none", "random"],
        features: Literal["trained", "last_epoch"],
    ) -> None:
        super().__init__()
        self.lam, self.weighting, self.first = lam, weighting, first
        self.measures_last_epoch = features == "last_epoch"

    def setup(self, setting: Setting) -> None:
        """Buffers for the server's ``prototypes`` [C, d], and which classes have one [C]."""
        super().setup(setting)
        shape = (setting.num_classes, setting.feature_dim)
        no_class = torch.zeros(setting.num_classes, dtype=torch.bool)
        self.register_buffer("prototypes", torch.zeros(shape), persistent=False)
        self.register_buffer("holds", no_class, persistent=False)
        if self.first == "random":
            draw = torch_generator(setting.seed, "first_prototypes")
            self.known = {"prototypes": torch.rand(shape, generator=draw), "holds": ~no_class}

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        loss = batch.mean(F.cross_entropy(batch.logits, batch.targets, reduction="none"))
        return loss + self.lam * cpdr(
            batch.z, batch.targets, self.prototypes, self.holds, real=batch.real
        )

    def receive(self, message: Message) -> None:
        """Set the prototypes to the server's."""
        self.holds.fill_(False)
        for name, tensor in message.extras.get("loss", {}).items():
            self.get_buffer(name).copy_(tensor)

    def measure(self, batch: Forward) -> Tensors:
        """With ``features=last_epoch``: the sums of each class's features and their numbers."""
        if not self.measures_last_epoch:
            return {}
        classes = torch.arange(self.num_classes, device=batch.targets.device)
        members = (batch.targets.unsqueeze(1) == classes).to(batch.z)  # vmap has no one_hot
        if batch.real is not None:
            members = members * batch.real.unsqueeze(1)
        return {"sums": members.T @ batch.z, "counts": members.sum(dim=0)}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The class prototypes of the chosen features, and the class counts."""
        if not self.measures_last_epoch:
            return super().report(client, memory)
        sums, counts = (client.measured["loss"][name] for name in ("sums", "counts"))
        return {"prototypes": sums / counts.clamp(min=1).unsqueeze(1), "counts": counts.long()}

    def merge(self, prototypes: Tensor, counts: Tensor) -> Tensors:
        """The mean prototypes, and which classes have one."""
        means, holds = mean_prototypes(prototypes, counts, self.weighting)
        return {"prototypes": means, "holds": holds}
