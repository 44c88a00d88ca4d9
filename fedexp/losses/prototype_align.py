"""FedProto's loss: cross-entropy plus the distance of features from their class's prototype."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import CLASS_PROTOTYPES, COMPARES_WITH_MODEL, TAKES_STALE
from fedexp.contract import Client, Forward, Memory, Setting, Tensors
from fedexp.core.forward import is_of_class
from fedexp.core.randomness import torch_generator
from fedexp.losses.prototype_loss import PrototypeLoss, Weighting
from fedexp.losses.semantic import cpdr


class PrototypeAlign(PrototypeLoss):
    """Cross-entropy + lam * mean squared difference between z and its class's global prototype.

    This is the loss of FedProto (Tan et al., AAAI 2022). As long as no class has a prototype, the
    loss is the cross-entropy.

    Args:
        lam: weight of the second term.
        missing: treatment of samples whose class has no prototype. With ``exclude`` the mean in the
            second term is only over the other samples. With ``zero`` (released code) the difference
            of such a sample counts as 0 in the mean.
        weighting: the clients' weights in a global prototype; see ``mean_prototypes``.
        first: the global prototypes in the first round. With ``none`` no class has a prototype.
            With ``random`` they are drawn uniformly from [0, 1]^d.
        features: the features whose class means are the client's prototypes. With ``trained`` the
            client computes the features of its training data after local training, in eval mode and
            without augmentation. With ``last_epoch`` the features come from the steps of the last
            local epoch: in train mode, with augmentation, while the weights change. FedNH's authors
            did so in their study (Dai et al., AAAI 2023).
    """

    unread_if = {"missing": {"lam": (0,)}}

    traits = PrototypeLoss.traits | {CLASS_PROTOTYPES, TAKES_STALE}
    prototypes: Tensor
    holds: Tensor

    def __init__(
        self,
        lam: NonNegativeFloat,
        missing: Literal["exclude", "zero"],
        weighting: Weighting,
        first: Literal["none", "random"],
        features: Literal["trained", "last_epoch"],
    ) -> None:
        super().__init__()
        self.lam, self.missing = lam, missing
        self.weighting, self.first = weighting, first
        self._uses_last_epoch = features == "last_epoch"
        if self._uses_last_epoch:
            self.traits = self.traits - {COMPARES_WITH_MODEL}

    def setup(self, setting: Setting) -> None:
        """Make buffers for the global prototypes [C, d] and the mask [C] of classes that have one.

        With ``first=random`` also draw the prototypes of the first round.
        """
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
        z, y = batch.z, batch.targets
        loss = batch.mean(F.cross_entropy(batch.logits, y, reduction="none"))
        if self.missing == "zero":
            squares = (z - self.prototypes[y]).square().mean(dim=1)
            return loss + self.lam * batch.mean(squares * self.holds[y])
        return loss + self.lam * cpdr(z, y, self.prototypes, self.holds, real=batch.real)

    def measure(self, batch: Forward) -> Tensors:
        """For each class, sum and count the features of the batch: sums [C, d], counts [C].

        In a batch before the last local epoch all are 0. With ``features=trained`` nothing is
        returned.
        """
        if not self._uses_last_epoch:
            return {}
        members = is_of_class(batch.targets, self.num_classes).to(batch.z)
        members = members * batch.in_last_epoch
        if batch.real is not None:
            members = members * batch.real.unsqueeze(1)
        return {"sums": members.T @ batch.z, "counts": members.sum(dim=0)}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The client's class prototypes [C, d] and class counts [C]."""
        if not self._uses_last_epoch:
            return super().report(client, memory)
        measured = client.measured(self)
        sums, counts = measured["sums"], measured["counts"]
        return {"prototypes": sums / counts.clamp(min=1).unsqueeze(1), "counts": counts.long()}
