"""FedGELA: one fixed simplex classifier for all, scaled by each client to the classes it holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn

from fedexp.core.client_protocol import Client
from fedexp.core.messages import Message
from fedexp.core.part import Memory
from fedexp.core.sockets import Head
from fedexp.errors import InputError
from fedexp.heads.sphere import simplex

Form = Literal["linear", "sqrt", "exp"]
FORMS: dict[Form, Callable[[Tensor], Tensor]] = {
    "linear": torch.positive,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
}


def simplex_etf(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """A simplex equiangular tight frame M [C, d] (Fan et al., NeurIPS 2023), rotated.

    M = sqrt(C / (C-1)) (I - 11^T / C) U with a random orthonormal U: unit rows whose pairwise
    cosine is -1 / (C-1), the smallest that C vectors can have.

    Raises:
        InputError: d < C - 1; there is no room for so many.
    """
    if dim < num_classes - 1:
        raise InputError(
            f"head=etf: needs model.feature_dim >= data classes - 1 = {num_classes - 1}, has {dim}"
        )
    return simplex(num_classes, dim, generator)


def adaptation(counts: Tensor, form: Form = "linear") -> Tensor:
    """Phi_k(c), the length of a client's classifier vectors (Fan et al., NeurIPS 2023).

    Phi_k(c) = C f(p_k(c)) / sum_j f(p_k(j)) over the classes that the client holds, 0 for the
    others; p_k(c) is the share of class c. With f the identity it is C p_k(c). The paper names the
    other two forms (Table 6) without a formula: here they too have mean 1, so that a client with
    all classes alike keeps the global classifier.

    Args:
        counts: [C] the client's training samples of each class, not all zero.
        form: f: ``linear``, ``sqrt`` or ``exp``.

    Returns:
        [C] float32.
    """
    shares = counts / counts.sum()
    lengths = FORMS[form](shares) * (counts > 0)
    return len(counts) * lengths / lengths.sum()


class ETF(Head):
    """logits_c = Phi_k(c) W_c . z, with W = sqrt(E_W) M fixed and z of length one.

    The global model has Phi = 1 and every class. A client that adapts has its own Phi, and the
    classes it lacks are left out of its softmax (Eq. 5) or have logit 0. Without adaptation this
    is FedGE.

    Args:
        feature_dim: d, at least C - 1.
        num_classes: C.
        energy: E_W, the squared length of each row of W.
        feature_norm: ``l2``; or ``batchnorm``, without affine parameters and divided by sqrt(d):
            features then have squared length E_H = 1 on average instead of each.
        adapt: whether clients scale W to their classes.
        phi: how Phi depends on a class's share.
        missing: what becomes of the classes that a client lacks.
    """

    derived = ("weight", "phi", "included")
    weight: Tensor
    phi: Tensor
    included: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        energy: PositiveFloat,
        feature_norm: Literal["l2", "batchnorm"],
        adapt: bool,
        phi: Form,
        missing: Literal["exclude", "zero_logit"],
    ) -> None:
        super().__init__()
        self.adapt, self.form, self.missing = adapt, phi, missing
        batchnorm = nn.BatchNorm1d(feature_dim, affine=False)
        self.batchnorm = batchnorm if feature_norm == "batchnorm" else None
        self.register_buffer("weight", math.sqrt(energy) * simplex_etf(num_classes, feature_dim))
        self.register_buffer("phi", torch.ones(num_classes))
        self.register_buffer("included", torch.ones(num_classes, dtype=torch.bool))

    def receive(self, message: Message) -> None:
        """The global model: nothing scaled, nothing left out."""
        self.phi.fill_(1)
        self.included.fill_(True)

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """Scale to this client's classes."""
        if not self.adapt:
            return
        counts = client.data.class_counts
        self.phi.copy_(adaptation(counts, self.form))
        if self.missing == "exclude":
            self.included.copy_(counts > 0)

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]; -inf for the classes that are left out."""
        logits = self.phi * F.linear(self._normalize(z), self.weight)
        return torch.where(self.included, logits, -torch.inf)

    def prototypes(self) -> Tensor:
        """The rows of W."""
        return self.weight

    def _normalize(self, z: Tensor) -> Tensor:
        if self.batchnorm is None:
            return F.normalize(z)
        mean, variance = self.batchnorm.running_mean, self.batchnorm.running_var
        # One sample alone has no variance: it is measured by the running statistics.
        by_batch = self.training and len(z) > 1
        return F.batch_norm(z, mean, variance, training=by_batch) / math.sqrt(z.shape[1])
