"""FedSC (KDD 2025): cross-entropy and two terms that compare features with prototypes.

Clients report class prototypes. The server compares the prototypes of different clients. It sends
back relational prototypes, one for each client and class, and consistent prototypes, one for each
class.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from fedexp.contract import Client, Forward, Memory, PartMessage, Setting, Tensors
from fedexp.core.prototypes import Metric, consistent_prototypes, relational_prototypes
from fedexp.core.transfer import to_device
from fedexp.losses.prototype_loss import PrototypeLoss
from fedexp.losses.semantic import Distance, Normalizer, cpdr, mean_distances, rpcl


class RpclCpdr(PrototypeLoss):
    """Cross-entropy + RPCL + CPDR, each with a weight (FedSC).

    RPCL is a contrast with relational prototypes, and CPDR is a distance from consistent
    prototypes; see ``rpcl`` and ``cpdr``. In the first round the server has no prototypes, so the
    loss is the weighted cross-entropy alone.

    The server sends the prototypes ``relational`` [K, C, d] and ``consistent`` [C, d]. The masks
    ``holds`` [K, C] and ``consistent_holds`` [C] say which of the prototypes exist. K is the size
    of the largest cohort so far. The prototypes of a class come from the latest cohort that held
    the class, ordered by client number. So row k may belong to different clients for different
    classes.

    Args:
        ce_weight: weight of the cross-entropy.
        rpcl_weight: weight of RPCL.
        cpdr_weight: weight of CPDR.
        temperature: tau of RPCL.
        normalizer: how RPCL computes U(r), which divides the similarity to the relational
            prototype r. With ``dataset`` U(r) is the mean distance between r and the features of
            all the client's samples under the received model (Eq. 13). ``rpcl`` explains the other
            values.
        distance: the distance from a consistent prototype in CPDR; see ``cpdr``.
        neighbors: the largest number of other clients whose prototypes are averaged into a client's
            relational prototype; the nearest are chosen.
        metric: the distance by which they are chosen; see ``relational_prototypes``.
    """

    unread_if = {
        "temperature": {"rpcl_weight": (0,)},
        "normalizer": {"rpcl_weight": (0,)},
        "distance": {"cpdr_weight": (0,)},
        "metric": {"neighbors": (0,)},
    }

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
        normalizer: Normalizer | Literal["dataset"],
        distance: Distance,
        neighbors: NonNegativeInt,
        metric: Metric,
    ) -> None:
        super().__init__()
        self.ce_weight, self.rpcl_weight, self.cpdr_weight = ce_weight, rpcl_weight, cpdr_weight
        self.temperature, self.normalizer, self.distance = temperature, normalizer, distance
        self.neighbors, self.metric = neighbors, metric

    def setup(self, setting: Setting) -> None:
        """Make empty buffers for the server's prototypes and for RPCL's divisors U(r).

        U(r) divides the similarity to the relational prototype r.
        """
        super().setup(setting)
        self._no_prototypes = {
            "relational": torch.zeros(0, setting.num_classes, setting.feature_dim),
            "holds": torch.zeros(0, setting.num_classes, dtype=torch.bool),
            "consistent": torch.zeros(setting.num_classes, setting.feature_dim),
            "consistent_holds": torch.zeros(setting.num_classes, dtype=torch.bool),
        }
        for name, tensor in self._no_prototypes.items():
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

    def receive(self, message: PartMessage) -> None:
        """Store the prototypes that the server sent. If it sent none, no class has a prototype."""
        device = self.spread.device
        self._no_prototypes = {
            n: to_device(each, device) for n, each in self._no_prototypes.items()
        }
        for name, tensor in (message.extras or self._no_prototypes).items():
            setattr(self, name, to_device(tensor, device))
        if self.normalizer == "dataset":  # its shape, before a stack of clients is allocated
            self.spread = torch.ones(self.relational.shape[:2], device=device)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """If ``normalizer`` is ``dataset``, compute U(r) from this client's samples.

        U(r) is the mean distance between the samples' features and the relational prototype r.
        """
        if self.normalizer == "dataset" and len(self.relational):
            self.spread = mean_distances(client.features()[0], self.relational)

    def merge(self, prototypes: Tensor, counts: Tensor) -> Tensors:
        """Compute relational and consistent prototypes, and masks that say which of them exist."""
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
