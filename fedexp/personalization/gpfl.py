"""GPFL: one layer turns features into features for the client's task and features for all."""

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT
from fedexp.contract import Client, Forward, Loss, Memory, Network, PartMessage, Setting
from fedexp.personalization.fedper import FedPer


class ConditionalValve(nn.Module):
    """Turns features z and a condition u into $relu((gamma(u) + 1) z + beta(u))$.

    gamma and beta are Linear(d, d)-ReLU-LayerNorm each.
    """

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.gamma, self.beta = (
            nn.Sequential(nn.Linear(feature_dim, feature_dim), nn.ReLU(), nn.LayerNorm(feature_dim))
            for _ in range(2)
        )

    def forward(self, z: Tensor, condition: Tensor) -> Tensor:
        """The new features [B, d] of ``z`` [B, d], for a ``condition`` [d]."""
        scale, shift = self.gamma(condition), self.beta(condition)
        return F.relu((scale + 1) * z + shift)


def guidance(
    features: Tensor, targets: Tensor, embeddings: Tensor, received: Tensor, weight: float
) -> Tensor:
    """The losses [B] that guide the features for all clients.

    It is the cross-entropy of the cosines with the classes' embeddings, plus ``weight`` times the
    Euclidean distance from the received embedding of the sample's class.

    Args:
        features: [B, d].
        targets: labels [B].
        embeddings: [C, d], the embeddings in training.
        received: [C, d], the embeddings as the server sent them.
        weight: weight of the distance.
    """
    cosines = F.normalize(features) @ F.normalize(embeddings).T
    angles = F.cross_entropy(cosines, targets, reduction="none")
    distances: Tensor = torch.linalg.vector_norm(features - received[targets], dim=1)
    return angles + weight * distances


class GPFL(FedPer):
    """The private head gets features for the client; further losses train features for all (GPFL).

    A valve, ``ConditionalValve``, and an embedding e_c of each class are shared, like the backbone
    (Zhang et al., ICCV 2023). The valve is applied to the backbone's features twice. With the
    condition $p = sum_c s_c e_c$ it gives the features that the private head gets; s are the
    client's class shares. With the condition $g = mean_c e_c$ it gives the features to which the
    losses of ``guidance`` apply. p and g are computed from the received embeddings when local
    training begins. The penalty on valve and embeddings is half of mu times their squared norm.

    In the released code p and g are computed from the client's own embeddings of its last training,
    and are 0 in the first round. Its distance is that of the whole batch, a norm of [B, d] values;
    here it is the mean over the samples.

    Args:
        lam: weight of the distance from the received embeddings.
        mu: strength of the penalty on valve and embeddings.
    """

    traits = FedPer.traits | {CHANGES_HEAD_INPUT}
    private_names = (*FedPer.private_names, "personalization.condition")
    takes_only_merged = True
    takes_tokens = False
    condition: Tensor
    common: Tensor
    received: Tensor

    def __init__(self, lam: NonNegativeFloat, mu: NonNegativeFloat) -> None:
        super().__init__("none")
        self.lam, self.mu = lam, mu

    def create(self, network: Network, loss: Loss) -> None:
        """Make the valve and the embeddings [C, d] of the classes, standard normal at first.

        The condition p is stored with a personal model, which needs it.
        """
        shape = (network.num_classes, network.feature_dim)
        self.valve = ConditionalValve(network.feature_dim)
        self.embeddings = nn.Parameter(torch.randn(shape))
        self.register_buffer("condition", torch.zeros(network.feature_dim))

    def setup(self, setting: Setting) -> None:
        """Make buffers for the condition g and the received embeddings."""
        shape = (setting.num_classes, setting.feature_dim)
        self.register_buffer("common", torch.zeros(setting.feature_dim), persistent=False)
        self.register_buffer("received", torch.zeros(shape), persistent=False)

    @torch.no_grad()
    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the received embeddings and the conditions p and g."""
        self.received.copy_(self.embeddings)
        self.common.copy_(self.received.mean(dim=0))
        counts = client.data.class_counts.to(self.received)
        self.condition.copy_(counts / counts.sum() @ self.received)

    def apply_head(self, head: nn.Module, z: Tensor) -> Tensor:
        """The logits [B, C] of the features for the client."""
        logits: Tensor = head(self.valve(z, self.condition))
        return logits

    def term(self, batch: Forward) -> Tensor:
        """The losses for the features of all clients, and the penalty; a scalar."""
        features = self.valve(batch.z, self.common)
        losses = guidance(features, batch.targets, self.embeddings, self.received, self.lam)
        squares = [each.square().sum() for each in self.parameters()]
        return batch.mean(losses) + 0.5 * self.mu * torch.stack(squares).sum()
