"""FedGELA: a fixed simplex classifier, the same for all clients, scaled by each to its classes."""

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
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Head
from fedexp.errors import InputError
from fedexp.heads.sphere import simplex

Form = Literal["linear", "sqrt", "exp"]
FORMS: dict[Form, Callable[[Tensor], Tensor]] = {
    "linear": torch.positive,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
}
"""Q, how the length of a class's vector grows with the class's share at the client."""


def simplex_etf(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """A simplex equiangular tight frame M [C, d] (Fan et al., NeurIPS 2023), rotated.

    M = sqrt(C / (C-1)) (I - 11^T / C) U with a random orthonormal U: unit rows whose pairwise
    cosine is -1 / (C-1), the smallest that C vectors can have.

    Raises:
        InputError: d < C - 1, the dimension of a simplex with C corners.
    """
    if dim < num_classes - 1:
        raise InputError(
            f"head=etf: needs model.feature_dim >= data classes - 1 = {num_classes - 1}, has {dim}"
        )
    return simplex(num_classes, dim, generator)


def adaptation(counts: Tensor, form: Form = "linear") -> Tensor:
    """Phi_k(c) from one client's counts alone, with mean 1 over the classes.

    Phi_k(c) = C Q(q_kc) / sum_j Q(q_kj) over the classes j that client k holds, 0 for the others;
    q_kc = n_kc / n_k. With Q the identity it is C q_kc, as published and as released (Fan et al.,
    NeurIPS 2023).

    Args:
        counts: [C] the client's training samples of each class.
        form: Q: ``linear``, ``sqrt`` or ``exp``.

    Returns:
        [C] float32; all 0 for a client without samples.
    """
    lengths = FORMS[form](_shares(counts)) * (counts > 0)
    return len(counts) * lengths / lengths.sum().clamp(min=torch.finfo(lengths.dtype).tiny)


def population_gamma(counts: Tensor, form: Form = "linear") -> Tensor:
    """gamma_c, by which Phi_k(c) = gamma_c Q(q_kc) has mean 1 over the clients.

    gamma_c = n / sum_k n_k Q(q_kc) gives sum_k (n_k / n) Phi_k(c) = 1 for every class: the clients'
    classifiers average to the global one (Fan et al., NeurIPS 2023, 5.3). With Q the identity it is
    n / n_c. The paper has one gamma for all classes, which is this if all are equal.

    Args:
        counts: [N, C] training samples of each class at each client.
        form: Q: ``linear``, ``sqrt`` or ``exp``.

    Returns:
        [C] float64; 0 for a class whose Q(q_kc) is 0 at every client, so that Phi_k(c) is 0 too.
    """
    counts = counts.double()
    sizes = counts.sum(dim=1, keepdim=True)
    total = (sizes * FORMS[form](_shares(counts))).sum(dim=0)
    return (sizes.sum() / total).masked_fill(total == 0, 0)


class ETF(Head):
    """logits_c = Phi_k(c) W_c . z with W = sqrt(E_W) M fixed and z normalised.

    The global model has Phi = 1 and every class. A client that adapts has its own Phi; the classes
    that it lacks are left out of its softmax (Eq. 5) or stay in it. Without adaptation this is
    FedGE.

    Args:
        feature_dim: d, at least C - 1.
        num_classes: C.
        energy: E_W, the squared length of each row of W.
        feature_norm: ``l2``: each z has length 1. ``batchnorm``: BatchNorm without weight and bias,
            divided by sqrt(d), so that z has mean squared length 1. ``batchnorm_affine``: BatchNorm
            with weight and bias, trained and averaged, not divided: z has mean squared length d
            before they are trained.
        adapt: whether clients scale W to their classes.
        phi: Q, how Phi depends on a class's share.
        phi_normalization: what makes Phi 1 on average. ``client``: each client's own counts, as
            in ``adaptation``; no counts are shared. ``population``: all clients' counts, as in
            ``population_gamma``.
        missing: the classes that a client lacks. ``exclude``: their logit is -inf. ``zero_logit``:
            they keep the logit that Phi gives them, which is 0. Only ``phi=exp`` with
            ``phi_normalization=population`` has Phi_k(c) = gamma_c > 0 for them.
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
        feature_norm: Literal["l2", "batchnorm", "batchnorm_affine"],
        adapt: bool,
        phi: Form,
        phi_normalization: Literal["client", "population"],
        missing: Literal["exclude", "zero_logit"],
    ) -> None:
        super().__init__()
        self.adapt, self.form, self.missing = adapt, phi, missing
        self.phi_normalization = phi_normalization
        affine = feature_norm == "batchnorm_affine"
        batchnorm = nn.BatchNorm1d(feature_dim, affine=affine)
        self.batchnorm = None if feature_norm == "l2" else batchnorm
        self.divisor = 1.0 if affine else math.sqrt(feature_dim)
        self.gamma = torch.zeros(num_classes, dtype=torch.float64)
        self.register_buffer("weight", math.sqrt(energy) * simplex_etf(num_classes, feature_dim))
        self.register_buffer("phi", torch.ones(num_classes))
        self.register_buffer("included", torch.ones(num_classes, dtype=torch.bool))

    def setup(self, setting: Setting) -> None:
        """gamma of the population."""
        self.gamma = population_gamma(setting.class_counts, self.form)

    def receive(self, message: Message) -> None:
        """The global model: Phi is 1, no class is left out."""
        self.phi.fill_(1)
        self.included.fill_(True)

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """Scale to this client's classes."""
        if not self.adapt:
            return
        counts = client.data.class_counts
        self.phi.copy_(self._adaptation(counts))
        if self.missing == "exclude":
            self.included.copy_(counts > 0)

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]; -inf for the classes that are left out."""
        logits = self.phi * F.linear(self.normalize(z), self.weight)
        return torch.where(self.included, logits, -torch.inf)

    def normalize(self, z: Tensor) -> Tensor:
        """Unit or standardised features [B, d]."""
        layer = self.batchnorm
        if layer is None:
            return F.normalize(z)
        # A single sample has no variance: the running statistics normalise it.
        by_batch = self.training and len(z) > 1
        mean, variance = layer.running_mean, layer.running_var
        standard = F.batch_norm(z, mean, variance, layer.weight, layer.bias, training=by_batch)
        return standard / self.divisor

    def prototypes(self) -> Tensor:
        """The rows of W."""
        return self.weight

    def _adaptation(self, counts: Tensor) -> Tensor:
        """Phi_k [C] of the client with these ``counts`` [C]."""
        if self.phi_normalization == "client":
            return adaptation(counts, self.form)
        return self.gamma.to(counts.device) * FORMS[self.form](_shares(counts))


def _shares(counts: Tensor) -> Tensor:
    """q = n_c / n of ``counts`` [..., C]; 0 where there are no samples at all."""
    return counts / counts.sum(dim=-1, keepdim=True).clamp(min=1)
