"""FedNH: the classifier consists of class prototypes, which start evenly spread.

In each round the server moves them towards the clients' class means.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Generator, Tensor

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT, TAKES_STALE
from fedexp.contract import Client, Head, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.prototypes import class_prototypes, stack_reports
from fedexp.core.randomness import torch_generator
from fedexp.heads.sphere import (
    Scale,
    circle,
    cosine_logits,
    cross_polytope,
    orthogonal_directions,
    random_directions,
    simplex,
    spread,
)

Weighting = Literal["count", "uniform"]


def maximin_prototypes(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """C unit vectors with the largest possible minimum distance (FedNH, AAAI 2023, problem (1)).

    The optimum is known for three cases. For d >= C - 1 it is a regular simplex, and for d = 2 it
    is C evenly spaced points on the circle. For d + 1 < C <= 2d it is a cross-polytope, because the
    smallest angle of more than d + 1 vectors is at most 90 degrees (Rankin, 1955). In all other
    cases numerical optimization from random vectors finds a local optimum (``spread``).

    Returns:
        [C, d] unit rows, randomly rotated.
    """
    if dim >= num_classes - 1:
        return simplex(num_classes, dim, generator)
    if dim == 2:
        return circle(num_classes, generator)
    if num_classes <= 2 * dim:
        return cross_polytope(num_classes, dim, generator)
    return spread(random_directions(num_classes, dim, generator))


def update_prototypes(
    old: Tensor, local: Tensor, counts: Tensor, rho: float, weighting: Weighting = "count"
) -> Tensor:
    """Move each prototype W_c towards mu_c, the average of the clients' class means.

    W_c <- normalize(rho W_c + (1 - rho) mu_c) (Dai et al., AAAI 2023). mu_kc is the mean feature of
    class c at client k, and n_kc is the client's number of samples of class c.

    Args:
        old: [C, d] prototypes, unit rows.
        local: [K, C, d] each client's class means of unit features, 0 for classes that the client
            lacks.
        counts: [K, C] each client's number of samples of each class.
        rho: the weight of the old prototype. If it is 1, the old prototypes are returned unchanged.
        weighting: with ``count`` mu_c = normalize(sum_k n_kc mu_kc / sum_k n_kc). With ``uniform``
            mu_c = sum_k mu_kc / K (the paper's Eq. 4).

    Returns:
        [C, d] unit rows, computed in float64 and returned in the dtype of ``old``. The rows of
        classes that no client holds do not change.
    """
    if rho == 1:
        return old  # normalising again would change the last bits
    means = local.double()
    if weighting == "count":
        target = F.normalize((counts.unsqueeze(2) * means).sum(dim=0))
    else:
        target = means.mean(dim=0)
    moved = F.normalize(rho * old.double() + (1 - rho) * target).to(old.dtype)
    return torch.where((counts > 0).any(dim=0).unsqueeze(1), moved, old)


_MOVED = {
    CHANGES_HEAD_INPUT: "head=prototype: the server moves the prototypes to means of the features "
    "as they are, but this {other} changes them before the head; use head=cosine"
}
"""``forbids`` of prototypes that the server moves."""

INITIALIZERS = {
    "maximin": maximin_prototypes,
    "orthogonal": orthogonal_directions,
    "random": random_directions,
}


class Prototype(Head):
    """A classifier whose rows are class prototypes W, moved only by the server (FedNH).

    $logits_c = s * W_c . z / ||z||$, where W_c is the prototype of class c and z are the features
    (Dai et al., AAAI 2023). After training, clients send the class means of their unit features.
    The server moves W towards these means, and sends W with every message. Two forms are published:
    the paper's (``init=maximin weighting=uniform renormalize_clients=false``) and the released
    code's (``init=orthogonal weighting=count renormalize_clients=true augmented_means=true``).

    Args:
        feature_dim: d.
        num_classes: C.
        scale: s, the factor of the cosines.
        normalize_features: whether logits use z / ||z||. If false, logits_c = s * W_c . z. The
            class means are always means of unit features.
        init: the initial W. ``maximin`` is the solution of the paper's problem (1), see
            ``maximin_prototypes``. ``orthogonal`` and ``random`` are orthogonal and random
            directions.
        rho: the weight of the old prototype in a round. With rho = 1, W is constant.
        weighting: how the clients' class means are averaged; see ``update_prototypes``.
        renormalize_clients: whether to normalise each client's means before averaging them.
        augmented_means: whether inputs are augmented, as in local training, before the features for
            the class means are computed.
    """

    unread_if = {
        "weighting": {"rho": (1,)},
        "renormalize_clients": {"rho": (1,)},
        "augmented_means": {"rho": (1,), "data.augment": ("none",)},
    }

    derived = ("weight",)
    traits = frozenset({TAKES_STALE})
    weight: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        scale: Scale,
        normalize_features: bool,
        init: Literal["maximin", "orthogonal", "random"],
        rho: Annotated[float, Field(ge=0, le=1)],
        weighting: Weighting,
        renormalize_clients: bool,
        augmented_means: bool,
    ) -> None:
        super().__init__()
        self.rho, self.weighting, self.renormalize_clients = rho, weighting, renormalize_clients
        self.augmented_means = augmented_means
        if rho < 1:
            self.forbids = _MOVED
        self.scale = scale.build()
        self.normalize_features = normalize_features
        self.register_buffer("weight", INITIALIZERS[init](num_classes, feature_dim))
        # The server's copy: the buffer ``weight`` belongs to the currently loaded model.
        self.global_prototypes = self.weight.clone()

    def setup(self, setting: Setting) -> None:
        """Store the seed of the run."""
        self._seed = setting.seed

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        if self.normalize_features:
            return cosine_logits(z, self.weight, self.scale)
        return self.scale * F.linear(z, self.weight)

    def normalize(self, z: Tensor) -> Tensor:
        """The features z [B, d] as the logits use them: of unit length, or unchanged."""
        return F.normalize(z, eps=1e-12) if self.normalize_features else z

    def prototypes(self) -> Tensor:
        """The prototypes W [C, d] of the currently loaded model."""
        return self.weight

    def broadcast(self, round: int) -> Tensors:
        """The server's prototypes W [C, d]."""
        return {"prototypes": self.global_prototypes.to(self.weight.device)}

    def receive(self, message: PartMessage) -> None:
        """Load the server's prototypes W [C, d]."""
        self.weight.copy_(message.extras["prototypes"])

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The client's class means of unit features [C, d], and its class counts [C]."""
        draws = None
        if self.augmented_means:
            turn = (client.round, client.data.client)
            draws = torch_generator(self._seed, "prototype_features", *turn)
        features, labels = client.features(augment=draws)
        means, counts = class_prototypes(F.normalize(features), labels, len(self.weight))
        return {
            "prototypes": F.normalize(means) if self.renormalize_clients else means,
            "counts": counts,
        }

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Move the prototypes W towards the cohort's class means."""
        local, counts = stack_reports(updates)
        old = self.global_prototypes.to(local.device)
        self.global_prototypes = update_prototypes(old, local, counts, self.rho, self.weighting)

    def server_state(self) -> dict[str, Any]:
        """The server's prototypes W [C, d]."""
        return {"prototypes": self.global_prototypes}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.global_prototypes = state["prototypes"]
