"""pFedFDA: the classifier follows from a Gaussian of each class's features, which clients adapt."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT, DERIVES_CLASSIFIER, OWN_MODEL
from fedexp.contract import Client, Head, Memory, PartMessage, Setting, Tensors
from fedexp.core.randomness import key
from fedexp.heads.discriminant import (
    best_betas,
    class_priors,
    discriminant,
    gaussian,
    interpolated,
    stratified,
)


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
    traits = frozenset({DERIVES_CLASSIFIER})
    forbids = {
        CHANGES_HEAD_INPUT: "head=gaussian: computes its classifier from the features as they are, "
        "but this {other} changes them before the head; use another {other}",
        OWN_MODEL: "head=gaussian: computes its classifier from the features of the shared model, "
        "which are not those of the own model of this {other}; use another {other}",
    }
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
        if client.is_personal:  # Ditto's separate model would keep the initial mu and S
            sent = ("head.means", "head.covariance")
            client.load({n: value for n, value in message.weights.items() if n in sent})
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
