"""FedSC (KDD 2025): features drawn to what other clients' classes mean.

Clients report class prototypes. The server relates them across clients and sends back two kinds:
relational prototypes, one for each client and class, which RPCL contrasts features with, and
consistent prototypes, one for each class, which CPDR pulls features to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat
from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.forward import Forward, mean_over
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory, Setting
from fedexp.core.prototypes import (
    Metric,
    class_prototypes,
    consistent_prototypes,
    relational_prototypes,
)
from fedexp.core.sockets import Loss

Distance = Literal["mse", "l1", "l2"]


def rpcl(
    z: Tensor,
    y: Tensor,
    relational: Tensor,
    holds: Tensor,
    temperature: float = 0.05,
    normalizer: Literal["batch", "none"] | Tensor = "batch",
    real: Tensor | None = None,
) -> Tensor:
    """Relational prototype contrastive learning (FedSC Eq. 13-14).

    -log(sum over r of the own class of exp(s(z, r) / tau) / the same sum over all r), mean over the
    batch, with s(z, r) = cos(z, r) / U(r) and U(r) the features' mean distance from r, a constant
    for the gradient. Samples whose class has no relational prototype are left out of the mean; if
    that is all of them, the loss is 0.

    Args:
        z: features [B, d].
        y: labels [B].
        relational: r [K, C, d].
        holds: [K, C] bool, which of them exist.
        temperature: tau.
        normalizer: what U(r) is: ``batch``, the mean of ||z - r|| over this batch; ``none``, 1; or
            a tensor U [K, C].
        real: [B], 0 for what is no sample; all are by default.

    Returns:
        The loss, a scalar.
    """
    rows = relational.flatten(0, 1)  # [K * C, d]
    scores = F.normalize(z, dim=1) @ F.normalize(rows, dim=1).T / temperature
    if normalizer == "batch":
        normalizer = mean_distances(z.detach(), relational, real)
    if isinstance(normalizer, Tensor):
        scores = scores / normalizer.flatten().clamp(min=torch.finfo(scores.dtype).eps)
    # Not -inf: its logsumexp has no gradient where nothing is left.
    scores = scores.masked_fill(~holds.flatten(), torch.finfo(scores.dtype).min)
    by_class = scores.reshape(len(z), *holds.shape)
    own = torch.take_along_dim(by_class, y[:, None, None], dim=2).squeeze(2)  # [B, K]
    losses = scores.logsumexp(dim=1) - own.logsumexp(dim=1)
    return _mean_where(holds.any(dim=0)[y], losses, real)


def cpdr(
    z: Tensor,
    y: Tensor,
    consistent: Tensor,
    holds: Tensor,
    distance: Distance = "mse",
    real: Tensor | None = None,
) -> Tensor:
    """Consistent prototype discrepancy regularisation (FedSC Eq. 15).

    The distance of a feature from its class's consistent prototype o_y, mean over the batch.
    Samples whose class has none are left out of the mean; if that is all of them, the loss is 0.

    Args:
        z: features [B, d].
        y: labels [B].
        consistent: o [C, d].
        holds: [C] bool, which of them exist.
        distance: ``mse``, the squared difference, mean over the d dimensions; ``l1``, the absolute
            difference, sum over the dimensions (its gradient is sqrt(d) long however near o_y is,
            so it wants a small weight); ``l2``, the Euclidean distance.
        real: [B], 0 for what is no sample; all are by default.

    Returns:
        The loss, a scalar.
    """
    difference = z - consistent[y]
    if distance == "mse":
        losses = difference.square().mean(dim=1)
    else:
        losses = torch.linalg.vector_norm(difference, 1 if distance == "l1" else 2, dim=1)
    return _mean_where(holds[y], losses, real)


def mean_distances(z: Tensor, relational: Tensor, real: Tensor | None = None) -> Tensor:
    """U [K, C] (FedSC Eq. 13): the mean over ``z`` [n, d] of ||z - r||, r in [K, C, d]."""
    distances = torch.cdist(z, relational.flatten(0, 1))
    return mean_over(distances, real).reshape(relational.shape[:2])


def _mean_where(known: Tensor, losses: Tensor, real: Tensor | None) -> Tensor:
    """The mean of ``losses`` [B] over the samples that are ``known`` [B]; 0 if none is."""
    return mean_over(losses, known if real is None else known * real)


class RpclCpdr(Loss):
    """Cross-entropy + RPCL + CPDR, each with a weight (FedSC).

    Until the server has prototypes, in the first round, the loss is the cross-entropy alone.

    What the server sends is what it keeps: ``relational`` [K, C, d] with ``holds`` [K, C], and
    ``consistent`` [C, d] with ``consistent_holds`` [C]. K is the size of the largest cohort so far.
    A class's rows are those of the latest cohort that held it, in the order of their clients; so
    the rows of a class that the latest cohort lacks are an older cohort's, and row k need not be
    the same client for every class.

    Args:
        ce_weight: weight of the cross-entropy.
        rpcl_weight: weight of RPCL.
        cpdr_weight: weight of CPDR.
        temperature: tau of RPCL.
        normalizer: U(r) of RPCL: as in ``rpcl``, or ``dataset``, the mean distance over all of the
            client's data under the model it receives.
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
        """Buffers for what the server sends, empty, and for U(r)."""
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
        z, logits, y, real = batch
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
        """Take over the prototypes."""
        for name, tensor in message.extras.get("loss", self._nothing).items():
            setattr(self, name, tensor.to(self.spread.device))

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """With ``normalizer=dataset``: U(r) over the client's data."""
        if self.normalizer == "dataset" and len(self.relational):
            self.spread = mean_distances(client.features()[0], self.relational)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The class prototypes of the trained model's features, and the class counts."""
        prototypes, counts = class_prototypes(*client.features(), self.num_classes)
        return {"prototypes": prototypes, "counts": counts}

    def aggregate(self, updates: Sequence[Update]) -> None:
        """New prototypes for every class that somebody in the cohort holds."""
        reports = [u.extras["loss"] for u in sorted(updates, key=lambda update: update.client)]
        if not reports:
            return
        prototypes = torch.stack([report["prototypes"] for report in reports])
        counts = torch.stack([report["counts"] for report in reports])
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
        """Take them back."""
        self._known = {name: tensor.to(self.spread.device) for name, tensor in state.items()}


def _carry_over(old: Tensors, new: Tensors) -> Tensors:
    """``new``, but ``old`` for the classes that nobody holds in ``new``."""
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
    """``tensor`` [K, ...] with zeros below, up to ``rows`` of them."""
    return torch.cat([tensor, tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])])
