"""MOCHA: clients' own models are pulled together as a matrix of task relations says."""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import DIFFERENT_NETWORKS, PRIVATE_BACKBONE
from fedexp.contract import Client, Memory, PartMessage, PartUpdate, Regularizer, Setting, Tensors
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.transfer import to_device
from fedexp.regularizers.anchors import Anchors, total

_LEAST_EIGENVALUE = 1e-7
"""Lower bound of the eigenvalues of W^T W, so that Omega exists; value in the authors' code."""


def learned_relation(products: Tensor) -> Tensor:
    """Omega [m, m], the inverse of $(W^T W)^(1/2) / tr((W^T W)^(1/2))$.

    Args:
        products: W^T W [m, m] of the m models.
    """
    values, vectors = torch.linalg.eigh(products)
    roots = values.clamp(min=_LEAST_EIGENVALUE).sqrt()
    relation: Tensor = vectors @ torch.diag(roots.sum() / roots) @ vectors.T
    return relation


def mean_relation(models: int) -> Tensor:
    """Omega [m, m] = (I - 1 1^T / m)^2, for which tr(W Omega W^T) is sum_t ||w_t - mean w||^2."""
    centering = torch.eye(models, dtype=torch.float64) - 1 / models
    return centering @ centering


class MultiTask(Regularizer):
    """The penalty $(lam / 2) tr(W Omega W^T)$ on the clients' own models (MOCHA).

    MOCHA is federated multi-task learning (Smith et al., NeurIPS 2017). The columns of W are the
    models w_t of the m clients that have trained, one task each. Omega [m, m] relates the tasks. In
    its training client t keeps the other models fixed. Up to a constant, its penalty is then

        $(lam / 2) Omega_tt ||w_t - c_t||^2$, $c_t = -sum_j Omega_tj w_j / Omega_tt$,

    where j runs over the other clients. The server sends c_t and Omega_tt, and gets w_t. In its
    first turn a client has no penalty, nor has it as long as no other client has trained.

    The paper minimises convex losses of linear models by steps on their dual problems. These do not
    exist for networks; here the local optimizer minimises the same objective. The authors' code
    computes Omega once in many rounds; here it follows every round. PFLlib has
    ``relation=mean`` with one element of Omega in place of the matrix, so it penalises the squared
    norm of the sum of the cohort's models.

    The server stores N models; models that exceed ``clients.ram_gib`` are on disk.

    Args:
        lam: strength of the penalty.
        relation: "learned" is ``learned_relation``, as in the authors' code. "mean" is
            ``mean_relation``, which pulls all models to their mean.
    """

    unread_if = {"relation": {"lam": (0,)}}
    needs = {
        PRIVATE_BACKBONE: "regularizer=multitask: relates models that clients keep; use "
        "personalization=local"
    }
    forbids = {
        DIFFERENT_NETWORKS: "regularizer=multitask: relates models of one network; with this "
        "{other} use regularizer=none"
    }
    saved = ("steps", "names", "products")
    strength: Tensor

    def __init__(self, lam: NonNegativeFloat, relation: Literal["learned", "mean"]) -> None:
        super().__init__()
        self.lam, self.relation = lam, relation
        self.steps = 0
        self.names: dict[int, str] = {}  # client -> name of its model in the store

    def setup(self, setting: Setting) -> None:
        """Make buffers for c_t and Omega_tt, the products W^T W, and the store of the models."""
        self.center = Anchors(setting.model.parameters)
        self.register_buffer("strength", torch.zeros(()), persistent=False)
        clients = setting.num_clients
        self.products = torch.zeros(clients, clients, dtype=torch.float64)
        self.store = self._models = setting.server.make_store("regularizer")

    # The server's half.

    def extras_to(self, client: int, message: PartMessage) -> Tensors:
        """The tensors of c_t, and Omega_tt, named ``strength``."""
        if client not in self.names or len(self.names) == 1:
            return {}
        row = self._relations(client)
        strength, center = row.pop(client), dict.fromkeys(self.center, torch.zeros(()))
        for other, element in row.items():
            for name, weight in self._model(other).items():
                center[name] = center[name] - element / strength * weight
        sent = prefixed("center", center) | {"strength": torch.tensor(strength)}
        device = self.strength.device
        return {name: to_device(value.float(), device) for name, value in sent.items()}

    def _relations(self, client: int) -> dict[int, float]:
        """The client's row of Omega: client -> element, over the clients that have trained."""
        clients = sorted(self.names)
        if self.relation == "mean":
            omega = mean_relation(len(clients))
        else:
            omega = learned_relation(self.products[clients][:, clients].cpu())
        return dict(zip(clients, omega[clients.index(client)].tolist(), strict=True))

    def _model(self, client: int) -> Tensors:
        """The client's latest model, float64 on the CPU."""
        stored = self._models[self.names[client]]
        return {name: weight.double().cpu() for name, weight in stored.items()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Store the cohort's models, and compute their products with all models."""
        self.steps += 1
        for update in updates:
            name = f"client_{update.client}_step_{self.steps}"
            self._models[name] = update.extras
            if update.client in self.names:
                del self._models[self.names[update.client]]
            self.names = self.names | {update.client: name}
        for update in updates:
            own = self._model(update.client)
            for other in self.names:
                model = self._model(other)
                product = torch.stack([(own[n] * model[n]).sum() for n in own]).sum()
                self.products[update.client, other] = self.products[other, update.client] = product

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set c_t and Omega_tt; both are 0 if the server sent none."""
        self.center.fill(with_prefix("center", message.extras))
        self.strength.zero_()
        if "strength" in message.extras:
            self.strength.copy_(message.extras["strength"])

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar."""
        squares = [(value - self.center[name]).square().sum() for name, value in parameters]
        return 0.5 * self.lam * self.strength * total(squares)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The trained parameters w_t."""
        return {name: client.weights[name].detach().clone() for name in self.center}
