"""FedGELA: a fixed simplex classifier, whose logits each client scales by its class shares."""

import math
from typing import Literal

import torch.nn.functional as F
from pydantic import PositiveFloat, PositiveInt
from torch import Generator, Tensor, nn

from fedexp.config.compatibility.traits import RUNNING_STATISTICS
from fedexp.errors import InputError
from fedexp.heads.adaptation import AdaptedHead, Form, Missing, Normalization
from fedexp.heads.sphere import simplex


def simplex_etf(num_classes: int, dim: int, generator: Generator | None = None) -> Tensor:
    """A randomly rotated simplex equiangular tight frame M [C, d] (Fan et al., NeurIPS 2023).

    M M^T = C / (C-1) (I - 11^T / C), where 1 is the vector of C ones. So the rows of M are unit
    vectors whose pairwise cosine is -1 / (C-1), the smallest possible for C vectors.

    Raises:
        InputError: d < C - 1, the dimension of a simplex with C corners.
    """
    if dim < num_classes - 1:
        raise InputError(
            f"head=etf: model.feature_dim={dim} is too small for {num_classes} classes; use at "
            f"least {num_classes - 1}"
        )
    return simplex(num_classes, dim, generator)


class ETF(AdaptedHead):
    """A fixed simplex classifier on normalised features (FedGELA).

    $logits_c = Phi_k(c) W_c . z$. The fixed matrix $W = sqrt(E_W) M$ is a scaled simplex (see
    ``simplex_etf``), W_c is its row of class c, and z is normalised. In the global model Phi is 1,
    and the softmax is over all classes. With ``adapt`` client k scales its logits by its factors
    Phi_k. ``missing`` decides whether its softmax is only over the classes that it holds (Eq. 5) or
    over all classes. Without ``adapt`` the method is FedGE.

    Args:
        feature_dim: d, at least C - 1.
        num_classes: C.
        energy: E_W, the squared norm of each row of W.
        feature_norm: with ``l2`` each z has norm 1. With ``batchnorm`` z is normalised by BatchNorm
            without weight and bias, and then divided by sqrt(d). The mean squared norm of z is then
            1. With ``batchnorm_affine`` z is normalised by a BatchNorm whose weight and bias are
            trained and averaged. z is not divided, so at the start of training its mean squared
            norm is d.
        adapt: whether each client scales its logits by its factors Phi_k.
        phi: how Phi_k(c) depends on the client's share of class c; see ``AdaptedHead``.
        phi_normalization: whether the mean of Phi is 1 over the classes or over the clients; see
            ``AdaptedHead``.
        missing: treatment of the classes that a client lacks; see ``AdaptedHead``.
    """

    unread_if = {
        "phi": {"adapt": (False,)},
        "phi_normalization": {"adapt": (False,)},
        "missing": {"adapt": (False,)},
    }

    derived: tuple[str, ...] = ("weight", *AdaptedHead.derived)
    weight: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        energy: PositiveFloat,
        feature_norm: Literal["l2", "batchnorm", "batchnorm_affine"],
        adapt: bool,
        phi: Form,
        phi_normalization: Normalization,
        missing: Missing,
    ) -> None:
        super().__init__(num_classes, adapt, phi, phi_normalization, missing)
        affine = feature_norm == "batchnorm_affine"
        batchnorm = nn.BatchNorm1d(feature_dim, affine=affine)
        self.batchnorm = None if feature_norm == "l2" else batchnorm
        if self.batchnorm is not None:
            self.traits |= {RUNNING_STATISTICS}
        self.divisor = 1.0 if affine else math.sqrt(feature_dim)
        self.register_buffer("weight", math.sqrt(energy) * simplex_etf(num_classes, feature_dim))

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]; -inf for excluded classes, see ``AdaptedHead.adapted``."""
        return self.adapted(F.linear(self.normalize(z), self.weight))

    def normalize(self, z: Tensor) -> Tensor:
        """Features [B, d], normalised as ``feature_norm`` says."""
        layer = self.batchnorm
        if layer is None:
            return F.normalize(z)
        # A single sample has no variance: use the running statistics.
        by_batch = self.training and len(z) > 1
        mean, variance = layer.running_mean, layer.running_var
        standard = F.batch_norm(z, mean, variance, layer.weight, layer.bias, training=by_batch)
        return standard / self.divisor

    def prototypes(self) -> Tensor:
        """The rows of the fixed weight W [C, d]."""
        return self.weight
