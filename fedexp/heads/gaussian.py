"""pFedFDA: the classifier follows from a Gaussian of each class's features, which clients adapt."""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from scipy.optimize import minimize
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from fedexp.contract import Client, Head, Memory, PartMessage, Setting, Tensors
from fedexp.core.prototypes import class_prototypes
from fedexp.core.randomness import key

_SHRINKAGE = 1e-4
"""The share of a multiple of the identity in the covariance that is inverted."""

_SMOOTHING = 1e-4
"""Added to the class shares, so that a class that a client lacks has a finite logit."""

Labelled = tuple[Tensor, Tensor]
"""Features [n, d] float64 and their labels [n]."""


def class_priors(counts: Tensor) -> Tensor:
    """The prior pi [C] float64 of each class, from the client's class counts [C]."""
    shares = counts.double() / counts.sum().clamp(min=1) + _SMOOTHING
    return shares / shares.sum()


def gaussian(samples: Labelled, means: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """The class means [C, d] and the common covariance [d, d] of features, float64.

    A class without features has its row of ``means``. The covariance is the sum of $(z - mean)
    (z - mean)^T$ over the n features, divided by n - 1, plus ``ridge`` times the identity.
    """
    z, labels = samples
    own, counts = class_prototypes(z, labels, len(means))
    own = torch.where(counts.unsqueeze(1) > 0, own, means.double())
    away = z - own[labels]
    covariance = away.T @ away / max(len(z) - 1, 1)
    return own, covariance + ridge * _identity_like(covariance)


def discriminant(means: Tensor, covariance: Tensor, priors: Tensor) -> tuple[Tensor, Tensor]:
    """The linear classifier of Gaussians with one covariance: weight [C, d] and bias [C].

    The logit of class c is $z^T S^-1 mu_c - mu_c^T S^-1 mu_c / 2 + log pi_c$ (linear discriminant
    analysis). S is the covariance with a small multiple of the identity in it.
    """
    variance = covariance.trace() / len(covariance)
    shrunk = (1 - _SHRINKAGE) * covariance + _SHRINKAGE * variance * _identity_like(covariance)
    weight = torch.linalg.solve_ex(shrunk, means.T)[0].T
    return weight, priors.log() - (means * weight).sum(dim=1) / 2


def _identity_like(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def interpolated(own: Tensor, common: Tensor, beta: Tensor | float) -> Tensor:
    """beta * own + (1 - beta) * common."""
    return beta * own + (1 - beta) * common


def best_betas(
    splits: Sequence[tuple[Labelled, Labelled]],
    means: Tensor,
    covariance: Tensor,
    priors: Tensor,
    ridge: float,
    separate: bool,
) -> list[float]:
    """The betas of means and covariance with the smallest cross-entropy on held-out features.

    L-BFGS-B minimises the sum over ``splits``, pairs of the features that give the client's
    Gaussians and the features that are held out. It starts from 0.5 and takes at most 10 steps.

    Args:
        splits: the (training, held-out) pairs. If there are none, the betas are 0.
        means: the received class means [C, d].
        covariance: the received covariance [d, d].
        priors: of the client, [C].
        ridge: see ``gaussian``.
        separate: whether means and covariance have two betas; else they have the same.
    """
    folds = [(gaussian(training, means, ridge), heldout) for training, heldout in splits]

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        betas = torch.from_numpy(values).to(means.device).requires_grad_()
        total = betas.new_zeros(())
        for (own_means, own_covariance), (z, labels) in folds:
            both = (
                interpolated(own_means, means, betas[0]),
                interpolated(own_covariance, covariance, betas[-1]),
            )
            total = total + F.cross_entropy(F.linear(z, *discriminant(*both, priors)), labels)
        (slope,) = torch.autograd.grad(total, betas)
        return total.item(), slope.cpu().numpy()

    if not folds:
        return [0.0, 0.0]
    start = np.full(1 + separate, 0.5)
    options = {"maxiter": 10, "gtol": 1e-3}
    with torch.enable_grad():
        found = minimize(
            loss, start, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * len(start), options=options
        ).x.tolist()
    return [found[0], found[-1]]


class Gaussian(Head):
    """A classifier that follows from class means mu and a covariance S of the features (pFedFDA).

    The features of class c are taken to be drawn from $N(mu_c, S)$ (McLaughlin and Su, NeurIPS
    2024). With the client's class shares this gives a linear classifier (``discriminant``), which
    has nothing to train: local training fits the backbone to it. Then a client estimates its own
    mu and S from the features of its samples. It sends $beta$ own + $(1 - beta)$ received, and the
    server averages these like weights. The client chooses beta by cross-validation on its samples
    (``best_betas``). A class that the client lacks keeps its received mean.

    A client's personal model is the present backbone with the classifier of its interpolated mu and
    S: use ``personalization=received``. The global model has equal class shares.

    The paper's text was not compared; the formulas follow the released code. There the features
    were collected during local training, and the personal model takes the received mean of a class
    with at most two samples. It also adds 0.0001 to every element of a covariance.

    Args:
        feature_dim: d.
        num_classes: C.
        separate: whether means and covariance have two betas; else they have the same.
        folds: the number of parts of a client's samples in the cross-validation.
        ridge: added to the diagonal of a client's covariance.
    """

    takes_only_merged = True
    derived = ("weight", "bias")
    means: Tensor
    covariance: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        separate: bool,
        folds: Annotated[int, Field(ge=2)],
        ridge: PositiveFloat,
    ) -> None:
        super().__init__()
        self.separate, self.folds, self.ridge = separate, folds, ridge
        self.register_buffer("means", torch.rand(num_classes, feature_dim))
        self.register_buffer("covariance", torch.eye(feature_dim))
        self.register_buffer("weight", torch.zeros(num_classes, feature_dim))
        self.register_buffer("bias", torch.zeros(num_classes))
        self._classify_by(self.means, self.covariance, torch.ones(num_classes))

    def setup(self, setting: Setting) -> None:
        """Store the seed of the run."""
        self._seed = setting.seed

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        return F.linear(z, self.weight, self.bias)

    def prototypes(self) -> Tensor:
        """The class means mu [C, d]."""
        return self.means

    def receive(self, message: PartMessage) -> None:
        """Set the classifier of the received mu and S with equal class shares."""
        self._classify_by(self.means, self.covariance, torch.ones_like(self.bias))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the classifier of the received mu and S; in a personal model, of the client's."""
        both = self._of_client(client) if client.is_personal else (self.means, self.covariance)
        self._classify_by(*both, client.data.class_counts)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Replace mu and S by the client's; they are sent with the weights."""
        means, covariance = self._of_client(client)
        self.means.copy_(means)
        self.covariance.copy_(covariance)
        self._classify_by(means, covariance, client.data.class_counts)
        return {}

    def _of_client(self, client: Client) -> tuple[Tensor, Tensor]:
        """The client's interpolated class means [C, d] and covariance [d, d], float64."""
        features, labels = client.features()
        z, means, covariance = features.double(), self.means.double(), self.covariance.double()
        draw = key(self._seed, "feature_folds", client.round, client.data.client)
        splits = stratified((z, labels), self.folds, draw)
        priors = class_priors(client.data.class_counts)
        betas = best_betas(splits, means, covariance, priors, self.ridge, self.separate)
        client.record({"head/beta_means": betas[0], "head/beta_covariance": betas[1]})
        own_means, own_covariance = gaussian((z, labels), means, self.ridge)
        return (
            interpolated(own_means, means, betas[0]),
            interpolated(own_covariance, covariance, betas[1]),
        )

    def _classify_by(self, means: Tensor, covariance: Tensor, counts: Tensor) -> None:
        """Set the linear classifier of these Gaussians, for a client with these class counts."""
        weight, bias = discriminant(means.double(), covariance.double(), class_priors(counts))
        self.weight.copy_(weight)
        self.bias.copy_(bias)


def stratified(samples: Labelled, folds: int, seed: int) -> list[tuple[Labelled, Labelled]]:
    """Pairs of training and held-out samples, one for each fold; each fold has all classes.

    Classes with fewer samples than folds are left out. If there is no other class, there are no
    pairs.
    """
    z, labels = samples
    kept = (labels.bincount()[labels] >= folds).nonzero().flatten()
    if len(kept) == 0:
        return []
    z, labels = z[kept], labels[kept]
    rule = StratifiedKFold(folds, shuffle=True, random_state=seed % 2**32)
    split = rule.split(np.zeros(len(labels)), labels.cpu().numpy())
    return [
        ((z[training], labels[training]), (z[heldout], labels[heldout]))
        for training, heldout in split
    ]
