"""FedAwS: after each round the server pushes the class vectors of a cosine classifier apart."""

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.func import grad
from torch.nn.functional import normalize

from fedexp.config.compatibility.declaration import TRAINED_HEAD
from fedexp.config.compatibility.traits import NOT_THE_MEAN, REPLACES_MODEL
from fedexp.contract import Setting, Tensors
from fedexp.errors import InputError
from fedexp.heads.cosine import Cosine
from fedexp.heads.sphere import Scale

_WEIGHT = "head.weight"


class SpreadOut(Cosine):
    """A cosine classifier with class vectors that are spread out (FedAwS; Yu et al., ICML 2020).

    After each round the server takes one gradient step on the averaged class vectors W:
    $W <- W - step grad R(W)$, $R(W) = sum_b sum_c max(0, margin - d(W_b, W_c))^2$ with the cosine
    distance $d = 1 - cos$. c runs over the ``nearest`` other classes of b. Then the rows of W are
    scaled to unit length. So classes keep apart even if each client has one class only and no
    client pushes the vectors of other classes away, as with ``loss=positive``, FedAwS's other half.

    The class vectors are averaged over the cohort like all weights. In the paper each client has
    one class and trains the vector of this class alone, and the server joins these vectors. The
    paper's text was not compared. The version in FedRepo, by other authors, differs: clients train
    with cross-entropy, the distance is (1 - cos) / 2, R is a mean, and the server takes 30 or 50
    steps with momentum without scaling the rows.

    Args:
        feature_dim: d.
        num_classes: C.
        scale: the factor of the cosines in the logits.
        margin: the distance from which on two classes do not repel each other, at most 2.
        step: the step size.
        nearest: the number of nearest classes that repel a class; None: all others.
    """

    takes_only_merged = True
    traits = frozenset({NOT_THE_MEAN})
    forbids = {
        **TRAINED_HEAD,
        REPLACES_MODEL: "head=spread_out: the server spreads the class vectors of the global "
        "model, but this {other} sends clients other models; use head=cosine",
    }

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        scale: Scale,
        margin: PositiveFloat,
        step: PositiveFloat,
        nearest: PositiveInt | None,
    ) -> None:
        super().__init__(feature_dim, num_classes, scale)
        self.margin, self.step, self.nearest = margin, step, nearest

    def setup(self, setting: Setting) -> None:
        """Raise InputError if the class vectors are private."""
        if _WEIGHT not in setting.model.shared:
            raise InputError(
                "head=spread_out: the server spreads the class vectors, but they are not sent; use "
                "head=cosine"
            )

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The merged weights with class vectors that are further apart."""
        weight = merged[_WEIGHT]
        apart = spread(weight.double(), self.margin, self.step, self.nearest)
        return merged | {_WEIGHT: apart.to(weight.dtype)}


def spread(vectors: Tensor, margin: float, step: float, nearest: int | None) -> Tensor:
    """The class vectors W [C, d] after the step of ``SpreadOut``, with unit length.

    The arguments besides W are those of ``SpreadOut``.
    """
    gradient: Tensor = grad(crowding)(vectors, margin, nearest)
    return normalize(vectors - step * gradient)


def crowding(vectors: Tensor, margin: float, nearest: int | None = None) -> Tensor:
    """The regularizer R(W) of ``SpreadOut``, a scalar; its arguments are those of ``spread``."""
    units = normalize(vectors)
    itself = torch.eye(len(vectors), dtype=torch.bool, device=vectors.device)
    terms = (margin - (1 - units @ units.T)).clamp(min=0).square().masked_fill(itself, 0.0)
    if nearest is not None:  # the nearest classes have the largest terms
        terms = terms.topk(min(nearest, len(terms)), dim=1).values
    return terms.sum()
