"""FedSC (KDD 2025): cross-entropy and two terms against prototypes shared across clients.

Clients report class prototypes. The server relates them across clients and sends back relational
prototypes, one for each client and class, and consistent prototypes, one for each class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.forward import Forward
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory, Setting
from fedexp.core.prototypes import (
    Metric,
    class_prototypes,
    consistent_prototypes,
    relational_prototypes,
    stack_reports,
)
from fedexp.core.sockets import Loss
from fedexp.losses.semantic import Distance, cpdr, mean_distances, rpcl


class RpclCpdr(Loss):
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
        self._known: Tensors = {}

    def setup(self, setting: Setting) -> None:
        """Empty buffers for the server's prototypes and for U(r)."""
        self.num_classes = setting.num_classes
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
        z, logits, y, real = batch[:4]
        loss = self.ce_weight * batch.mean(F.cross_entropy(logits, y, reduction="none"))
        if not len(self.relational):
            return loss
        normalizer = self.spread if self.normalizer == "dataset" else self.normalizer
        contrast = rpcl(z, y, self.relational, self.holds, self.temperature, normalizer, real)
        discrepancy = cpdr(z, y, self.consistent, self.consistent_holds, self.distance, real)
        return loss + self.rpcl_weight * contrast + self.cpdr_weight * discrepancy

    def broadcast(self, round: int) -> Tensors:
        """The prototypes; nothing before the first reports."""
        return dict(self._known)

    def receive(self, message: Message) -> None:
        """Set the prototypes to the server's."""
        for name, tensor in message.extras.get("loss", self._nothing).items():
            setattr(self, name, tensor.to(self.spread.device))

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """With ``normalizer=dataset``: U(r) of this client."""
        if self.normalizer == "dataset" and len(self.relational):
            self.spread = mean_distances(client.features()[0], self.relational)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The class prototypes of the trained model's features, and the class counts."""
        prototypes, counts = class_prototypes(*client.features(), self.num_classes)
        return {"prototypes": prototypes, "counts": counts}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """New prototypes for every class that a client of the cohort holds."""
        if not updates:
            return
        prototypes, counts = stack_reports(updates, "loss")
        relational, holds = relational_prototypes(
            prototypes, counts, self.neighbors, metric=self.metric
        )
        consistent, consistent_holds = consistent_prototypes(relational, counts)
        new = {
            "relational": relational,
            "holds": holds,
            "consistent": consistent,
            "consistent_holds": consistent_holds,
        }
        self._known = _carry_over(self._known, new) if self._known else new

    def server_state(self) -> Tensors:
        """The prototypes."""
        return dict(self._known)

    def load_server_state(self, state: Tensors) -> None:
        """Inverse of ``server_state``."""
        self._known = {name: tensor.to(self.spread.device) for name, tensor in state.items()}


def _carry_over(old: Tensors, new: Tensors) -> Tensors:
    """``new``, but ``old`` for the classes that no client holds in ``new``."""
    renewed = new["consistent_holds"]
    rows = max(len(old["holds"]), len(new["holds"]))
    return {
        "relational": torch.where(
            renewed.unsqueeze(1), _padded(new["relational"], rows), _padded(old["relational"], rows)
        ),
        "holds": torch.where(renewed, _padded(new["holds"], rows), _padded(old["holds"], rows)),
        "consistent": torch.where(renewed.unsqueeze(1), new["consistent"], old["consistent"]),
        "consistent_holds": renewed | old["consistent_holds"],
    }


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """``tensor`` [K, ...] with rows of zeros appended, [``rows``, ...]."""
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
