"""Floco: a linear head that is a point between trained corners, in each client's own region."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from fedexp.config.compatibility.declaration import TRAINED_HEAD
from fedexp.config.compatibility.traits import OTHER_STARTS, READS_ROUNDS
from fedexp.config.schema import PositiveShare
from fedexp.contract import Client, Head, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.randomness import key, uniform
from fedexp.core.simplex_projection import nearest_in_simplex
from fedexp.core.transfer import to_device
from fedexp.errors import InputError
from fedexp.rounding import rounded_down

Endpoints = Annotated[int, Field(ge=2)]

_WEIGHT = "head.weight"
_SCALES = np.linspace(1e-4, 1, 1000)
"""The scales z that ``subregions`` tries, as in the released code."""
_LEAST_DISTANCE = 1e-4


class Simplex(Head):
    """A linear head with the weight $sum_m alpha_m W_m$ (Floco; Grinwald et al., NeurIPS 2024).

    The M endpoints W_m span a simplex of classifiers; all are trained, sent and averaged. A step
    draws alpha, a point of the simplex, and trains the model with the weight of this point. In the
    first rounds alpha is uniform in the simplex. After the share ``warmup`` of the rounds the
    server gives each client a subregion: a center, found from the client's change of the endpoints
    (``subregions``), with a radius. From then on the client draws $alpha = center + radius r u$,
    where r is uniform in [0, 1]. The elements of u are uniform in [-1, 1], and then divided by the
    sum of their absolute values. So alpha may leave the simplex a little. The global model has the
    weight of the simplex's middle, and a personal model that of its client's center. All points
    have the same bias.

    The formulas are those of a released version of the code; the paper's text was not compared. In
    another released version clients train the middle until the subregions are found. In the
    released code all clients train in the round before that. Here a client's last change is used. A
    client that has not trained yet has no subregion: it draws from the simplex. Floco+ is this head
    with ``personalization=ditto``. In the released code its separate personal model has no
    subregion.

    A step moves the weight of its point by $sum_m alpha_m^2$ of the step of a plain linear head;
    before the subregions this is about 2 / (M + 1). Afterwards few clients train near the middle,
    so the global model may not improve any more.

    Until the subregions are found, the server stores a change of the endpoints for each client.

    Args:
        feature_dim: d.
        num_classes: C.
        bias: whether logits have an offset for each class.
        endpoints: M.
        warmup: the share of the rounds after which clients get their subregions. A run that goes on
            with more rounds keeps the round.
        radius: the radius of a subregion, a distance in the 1-norm.
    """

    traits = frozenset({READS_ROUNDS})
    forbids = TRAINED_HEAD
    discourages = dict.fromkeys(
        OTHER_STARTS,
        "head=simplex: the server finds a client's subregion from the change of its endpoints from "
        "the global ones; this {other} may start clients from other weights, so the change is not "
        "only the client's own step; use head=linear",
    )
    derived = ("point",)
    saved = ("steps", "last", "changes", "centers")
    key: Tensor
    point: Tensor
    is_assigned: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        bias: bool,
        endpoints: Endpoints,
        warmup: PositiveShare,
        radius: NonNegativeFloat,
    ) -> None:
        super().__init__()
        self.endpoints, self.warmup, self.radius = endpoints, warmup, radius
        corners = [
            nn.init.xavier_normal_(torch.empty(num_classes, feature_dim)) for _ in range(endpoints)
        ]
        self.weight = nn.Parameter(torch.stack(corners))
        self.bias = nn.Parameter(torch.zeros(num_classes)) if bias else None
        self.register_buffer("point", torch.full((endpoints,), 1 / endpoints))
        self.steps = 0
        self.changes: dict[int, Tensor] = {}
        self.centers: dict[int, Tensor] = {}

    def setup(self, setting: Setting) -> None:
        """Make buffers for the key of the random draws, and whether there is a subregion.

        Raises:
            InputError: the endpoints are private to the clients.
        """
        if _WEIGHT not in setting.model.shared:
            raise InputError(
                "head=simplex: clients train the corners of one simplex together, but this "
                "personalization does not send the head; use another personalization"
            )
        self._seed = setting.seed
        self.last = max(1, rounded_down(self.warmup, setting.rounds))
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("is_assigned", torch.zeros((), dtype=torch.bool), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        return F.linear(z, self._weight(), self.bias)

    def prototypes(self) -> Tensor:
        """The rows of the weight [C, d] at the present point."""
        return self._weight().detach()

    def _weight(self) -> Tensor:
        weight: Tensor = torch.tensordot(self.point, self.weight, dims=1)
        return weight

    # The client's half.

    def receive(self, message: PartMessage) -> None:
        """Set the middle of the simplex."""
        self.point.fill_(1 / self.endpoints)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the client's center, and the key of its random draws."""
        self.key.fill_(key(self._seed, "simplex", client.round, client.data.client))
        self.is_assigned.fill_("center" in message.extras)
        for center in message.extras.values():
            self.point.copy_(to_device(center, client.device))

    def step_weights(self, parameters: Tensors, step: Tensor | int) -> Tensors:
        """The point alpha [M] of this step."""
        draws = uniform(self.key, step, 2 * self.endpoints + 1)
        exponential = -torch.log1p(-draws[: self.endpoints])
        direction = 2 * draws[self.endpoints : -1] - 1
        nearby = self.point + self.radius * draws[-1] * direction / direction.abs().sum()
        point = torch.where(self.is_assigned, nearby, exponential / exponential.sum())
        return {"head.point": point}

    # The server's half.

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """The center [M] of the client's subregion, if it has one."""
        return {"center": self.centers[client]} if client in self.centers else {}

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """The client's change of the endpoints [M * C * d], until there are subregions."""
        if self.steps >= self.last:
            return {}
        return {"change": (weights[_WEIGHT] - current[_WEIGHT]).flatten()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the changes of the cohort; find the subregions after the last round of warm-up."""
        changes = {u.client: u.extras["change"].cpu() for u in updates if "change" in u.extras}
        self.changes = self.changes | changes
        self.steps += 1
        if self.steps != self.last:
            return
        clients = sorted(self.changes)
        centers = subregions(torch.stack([self.changes[k] for k in clients]), self.endpoints)
        self.centers = dict(zip(clients, centers.float(), strict=True))
        self.changes = {}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``. The changes stay on the CPU, where later ones are put."""
        self.steps, self.changes, self.centers = state["steps"], state["changes"], state["centers"]
        self.last = state["last"]


def subregions(changes: Tensor, endpoints: int) -> Tensor:
    """The centers of n clients' subregions, points [n, M] of the simplex, float64.

    A client's coordinates kappa are those of its change along the first M principal components,
    whose largest elements are positive; a coordinate without a component is 0. Its center is the
    point of the simplex that is nearest to kappa / z. The scale z is that of ``_SCALES`` for which
    the centers are furthest apart: it minimizes the sum of d^-2 over the pairs of clients (Riesz
    energy), with their distances d.

    Args:
        changes: each client's change of the endpoints, [n, D].
        endpoints: M.
    """
    centered = changes.double() - changes.double().mean(dim=0)
    u, lengths, components = torch.linalg.svd(centered, full_matrices=False)
    largest = components.gather(1, components.abs().argmax(dim=1, keepdim=True)).flatten()
    kappa = (u * lengths * largest.sign())[:, :endpoints]
    kappa = F.pad(kappa, (0, endpoints - kappa.shape[1]))
    return min((nearest_in_simplex(kappa / z) for z in _SCALES), key=_energy)


def _energy(points: Tensor) -> float:
    """The sum of d^-2 over all pairs of the points [n, M]; a tiny d counts as 1e-4."""
    distances = F.pdist(points).clamp(min=_LEAST_DISTANCE)
    return distances.pow(-2).sum().item()
