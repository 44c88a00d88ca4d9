"""FedProto's loss: cross-entropy and the distance of features from their class's prototype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.compatibility import CLASS_PROTOTYPES
from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory, Setting
from fedexp.core.prototypes import class_prototypes, stack_reports
from fedexp.core.randomness import torch_generator
from fedexp.core.sockets import Loss
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


class PrototypeAlign(Loss):
    """Cross-entropy + lam * mean squared difference of z from its class's global prototype.

    The loss of FedProto (Tan et al., AAAI 2022). A client's prototypes are the class means of its
    features after local training. Samples whose class has no prototype are left out of the second
    mean; without any prototype the loss is the cross-entropy.

    Args:
        lam: weight of the second term.
        weighting: as in ``mean_prototypes``.
        first: the prototypes of the first round: ``none``, or ``random``, uniform in [0, 1]^d.
    """

    traits = frozenset({CLASS_PROTOTYPES})
    prototypes: Tensor
    holds: Tensor

    def __init__(
        self, lam: NonNegativeFloat, weighting: Weighting, first: Literal["none", "random"]
    ) -> None:
        super().__init__()
        self.lam, self.weighting, self.first = lam, weighting, first
        self._known: Tensors = {}

    def setup(self, setting: Setting) -> None:
        """Buffers for the server's ``prototypes`` [C, d], and which classes have one [C]."""
        self.num_classes = setting.num_classes
        shape = (setting.num_classes, setting.feature_dim)
        no_class = torch.zeros(setting.num_classes, dtype=torch.bool)
        self.register_buffer("prototypes", torch.zeros(shape), persistent=False)
        self.register_buffer("holds", no_class, persistent=False)
        if self.first == "random":
            draw = torch_generator(setting.seed, "first_prototypes")
            self._known = {"prototypes": torch.rand(shape, generator=draw), "holds": ~no_class}

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        loss = batch.mean(F.cross_entropy(batch.logits, batch.targets, reduction="none"))
        return loss + self.lam * cpdr(
            batch.z, batch.targets, self.prototypes, self.holds, real=batch.real
        )

    def broadcast(self, round: int) -> Tensors:
        """The prototypes, if there are any yet."""
        return dict(self._known)

    def receive(self, message: Message) -> None:
        """Set the prototypes to the server's."""
        self.holds.fill_(False)
        for name, tensor in message.extras.get("loss", {}).items():
            self.get_buffer(name).copy_(tensor)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The class prototypes of the trained model's features, and the class counts."""
        prototypes, counts = class_prototypes(*client.features(), self.num_classes)
        return {"prototypes": prototypes, "counts": counts}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """New prototypes for every class that a client of the cohort holds."""
        if not updates:
            return
        prototypes, holds = mean_prototypes(*stack_reports(updates, "loss"), self.weighting)
        if self._known:
            old = {name: tensor.to(holds.device) for name, tensor in self._known.items()}
            prototypes = torch.where(holds.unsqueeze(1), prototypes, old["prototypes"])
            holds = holds | old["holds"]
        self._known = {"prototypes": prototypes, "holds": holds}

    def server_state(self) -> Tensors:
        """The prototypes."""
        return dict(self._known)

    def load_server_state(self, state: Tensors) -> None:
        """Inverse of ``server_state``."""
        self._known = dict(state)
