"""FedSC (KDD 2025): cross-entropy and two terms against prototypes shared across clients.

Clients report class prototypes. The server relates them across clients and sends back relational
prototypes, one for each client and class, and consistent prototypes, one for each class.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.prototypes import (
    Metric,
    consistent_prototypes,
    relational_prototypes,
)
from fedexp.losses.prototype_loss import PrototypeLoss
from fedexp.losses.semantic import Distance, cpdr, mean_distances, rpcl


class RpclCpdr(PrototypeLoss):
    """Cross-entropy + RPCL + CPDR, each with a weight (FedSC).

    Until the server has prototypes, in the first round, the loss is the cross-entropy alone.

    The server sends ``relational`` [K, C, d] with ``holds`` [K, C], and ``consistent`` [C, d] with
    ``consistent_holds`` [C]. K is the size of the largest cohort so far. A class's rows are those
    of the latest cohort that held the class, in the order of its clients. So the rows of a class
    that the latest cohort lacks are an older cohort's, and row k need not be the same client for
    every class.

    Args:
        ce_weight: weight of the cross-entropy.
        rpcl_weight: weight of RPCL.
        cpdr_weight: weight of CPDR.
        temperature: tau of RPCL.
        normalizer: U(r) of RPCL: as in ``rpcl``, or ``dataset``, the mean distance from r of the
            features of all of the client's samples under the model it receives (Eq. 13).
        distance: as in ``cpdr``.
        neighbors: as in ``relational_prototypes``.
        metric: as in ``relational_prototypes``.
    """

    by_client = frozenset({"relational", "holds"})
    relational: Tensor
    holds: Tensor
    consistent: Tensor
    consistent_holds: Tensor
    spread: Tensor

    def __init__(
        self,
        ce_weight: NonNegativeFloat,
        rpcl_weight: NonNegativeFloat,
        cpdr_weight: NonNegativeFloat,
        temperature: PositiveFloat,
        normalizer: Literal["batch", "none", "dataset"],
        distance: Distance,
        neighbors: NonNegativeInt,
        metric: Metric,
    ) -> None:
        super().__init__()
        self.ce_weight, self.rpcl_weight, self.cpdr_weight = ce_weight, rpcl_weight, cpdr_weight
        self.temperature, self.normalizer, self.distance = temperature, normalizer, distance
        self.neighbors, self.metric = neighbors, metric

    def setup(self, setting: Setting) -> None:
        """Empty buffers for the server's prototypes and for U(r)."""
        super().setup(setting)
        self._nothing = {
            "relational": torch.zeros(0, setting.num_classes, setting.feature_dim),
            "holds": torch.zeros(0, setting.num_classes, dtype=torch.bool),
            "consistent": torch.zeros(setting.num_classes, setting.feature_dim),
            "consistent_holds": torch.zeros(setting.num_classes, dtype=torch.bool),
        }
        for name, tensor in self._nothing.items():
            self.register_buffer(name, tensor, persistent=False)
        self.register_buffer("spread", torch.zeros(0, setting.num_classes), persistent=False)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        z, logits, y, real = batch.z, batch.logits, batch.targets, batch.real
        loss = self.ce_weight * batch.mean(F.cross_entropy(logits, y, reduction="none"))
        if not len(self.relational):
            return loss
        normalizer = self.spread if self.normalizer == "dataset" else self.normalizer
        contrast = rpcl(z, y, self.relational, self.holds, self.temperature, normalizer, real)
        discrepancy = cpdr(z, y, self.consistent, self.consistent_holds, self.distance, real)
        return loss + self.rpcl_weight * contrast + self.cpdr_weight * discrepancy

    def receive(self, message: Message) -> None:
        """Set the prototypes to the server's."""
        device = self.spread.device
        self._nothing = {name: tensor.to(device) for name, tensor in self._nothing.items()}
        for name, tensor in message.extras.get("loss", self._nothing).items():
            setattr(self, name, tensor.to(device))

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """With ``normalizer=dataset``: U(r) of this client."""
        if self.normalizer == "dataset" and len(self.relational):
            self.spread = mean_distances(client.features()[0], self.relational)

    def merge(self, prototypes: Tensor, counts: Tensor) -> Tensors:
        """Relational and consistent prototypes, and who holds them."""
        relational, holds = relational_prototypes(
            prototypes, counts, self.neighbors, metric=self.metric
        )
        consistent, consistent_holds = consistent_prototypes(relational, counts)
        return {
            "relational": relational,
            "holds": holds,
            "consistent": consistent,
            "consistent_holds": consistent_holds,
        }
