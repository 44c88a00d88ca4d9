"""FedSR: cross-entropy of random features, and two terms that keep these features simple."""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from fedexp.config.compatibility.traits import RUNNING_STATISTICS
from fedexp.contract import Client, Forward, Loss, Memory, Network, PartMessage, Setting
from fedexp.core.randomness import key, normal

Norm = Literal["squared", "plain"]

_LEAST_DEVIATION = 1e-6
"""Lower bound of a standard deviation, so that its logarithm is finite."""


def normal_divergence(
    mean: Tensor, deviation: Tensor, mean_r: Tensor, deviation_r: Tensor
) -> Tensor:
    """The divergence KL(N(mean, deviation^2) || N(mean_r, deviation_r^2)) of each row.

    The normal distributions have independent dimensions, over which the divergence is summed.

    Args:
        mean: [B, d].
        deviation: standard deviations [B, d], positive.
        mean_r: [B, d].
        deviation_r: standard deviations [B, d], positive.

    Returns:
        The divergences [B].
    """
    ratio = deviation / deviation_r
    shift = (mean - mean_r) / deviation_r
    return (0.5 * (ratio.square() + shift.square() - 1) - ratio.log()).sum(dim=1)


class SimpleRepresentation(Loss):
    """Cross-entropy of random features, plus penalties on their norm and their information (FedSR).

    A sample's random features are $s = z + sigma e$ with standard normal e. Their mean z [d] is the
    input of the head. Their standard deviation is $sigma = softplus(A z + b)$. With the head h, the
    loss is the mean over the batch of

        $CE(h(s), y) + l2r ||s||^2 + cmi KL(N(z, sigma^2) || N(m_y, r_y^2))$

    (Nguyen et al., NeurIPS 2022). The second term makes features short. The third term is an upper
    bound of the information that features have about the inputs besides their class. Its reference
    $N(m_y, r_y^2)$ of class y is the same for all clients. A, b, m [C, d] and r [C, d] are
    parameters of the loss: they are trained, sent and averaged like the model.

    In the released code the last layer of the backbone makes z and sigma from the same features. A
    linear layer of sigma after z gives the same functions, if the layer that makes z is linear and
    invertible. The released code predicts with the mean probabilities of 20 draws of s; here a
    model predicts from z, so that it combines with every head. The released code keeps m and r at
    the clients, and multiplies z and sigma in the third term by a learned number.

    Args:
        l2r: weight of the second term.
        cmi: weight of the third term.
        norm: the second term's penalty. "squared" is the squared Euclidean norm of s, as in the
            paper. "plain" is the norm, as in the released code.
    """

    unread_if = {"norm": {"l2r": (0,)}}
    takes_only_merged = True
    forbids = {
        RUNNING_STATISTICS: "loss=fedsr: random features would change the running statistics of "
        "this {other}; use head.feature_norm=l2",
    }
    key: Tensor

    def __init__(self, l2r: NonNegativeFloat, cmi: NonNegativeFloat, norm: Norm) -> None:
        super().__init__()
        self.l2r, self.cmi, self.norm = l2r, cmi, norm

    def create(self, network: Network) -> None:
        """Make the layer of sigma, and the references' means m and raw deviations.

        The references start as in the released code: m = 0, and r = softplus(1).
        """
        shape = (network.num_classes, network.feature_dim)
        self.deviation = nn.Linear(network.feature_dim, network.feature_dim)
        self.class_mean = nn.Parameter(torch.zeros(shape))
        self.class_deviation = nn.Parameter(torch.ones(shape))

    def setup(self, setting: Setting) -> None:
        """Make a buffer for the key of the random draws."""
        self.seed = setting.seed
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the key of the random draws, which differs between clients and rounds."""
        self.key.fill_(key(self.seed, "random_features", client.round, client.data.client))

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        assert batch.head is not None
        deviation = _positive(self.deviation(batch.z))
        s = batch.z + deviation * normal(self.key, batch.step, *batch.z.shape)
        losses = F.cross_entropy(batch.head(s), batch.targets, reduction="none")
        squares = s.square().sum(dim=1)
        length = squares if self.norm == "squared" else squares.sqrt()
        divergence = normal_divergence(
            batch.z,
            deviation,
            self.class_mean[batch.targets],
            _positive(self.class_deviation)[batch.targets],
        )
        return batch.mean(losses + self.l2r * length + self.cmi * divergence)


def _positive(raw: Tensor) -> Tensor:
    """A standard deviation, softplus(raw), with the bound ``_LEAST_DEVIATION``."""
    return F.softplus(raw).clamp(min=_LEAST_DEVIATION)
