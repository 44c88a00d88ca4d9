"""FedCP: for each sample, a policy divides the features between a shared and a private head."""

from collections.abc import Sequence
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedexp.config.compatibility.traits import (
    CHANGES_HEAD_INPUT,
    LEFT_OUT_HEAD,
    LINEAR_HEAD,
    SENDS_KEPT,
    SENDS_OTHER,
)
from fedexp.contract import (
    Client,
    Loss,
    Memory,
    Network,
    PartMessage,
    Personalization,
    Phase,
    Tensors,
)

_HEAD = "personalization.head."


class PolicyNetwork(nn.Module):
    """Linear(d, 2 d)-LayerNorm-ReLU, and a softmax over the two outputs of each feature."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        wide = 2 * feature_dim
        self.layers = nn.Sequential(nn.Linear(feature_dim, wide), nn.LayerNorm(wide), nn.ReLU())

    def forward(self, condition: Tensor) -> tuple[Tensor, Tensor]:
        """The shares r and s [B, d] for conditions [B, d]; r + s = 1 for each feature."""
        shared, private = self.layers(condition).unflatten(1, (2, -1)).softmax(dim=1).unbind(dim=1)
        return shared, private


class FedCP(Personalization):
    """Logits are those of a shared head for r z plus those of a private head for s z (FedCP).

    The shares r and s [B, d] of the features z [B, d] are computed for each sample by a policy
    network (Zhang et al., KDD 2023; ``PolicyNetwork``). Its input is $z v / ||v||$. v [d] is the
    sum of the rows of the private head's weight when local training begins. The private head starts
    from the initial shared head.

    Local training trains the backbone, the policy network and the private head; the shared head is
    frozen. Then the client sends the mean of the two heads as the shared head. Backbone and policy
    network are averaged like in FedAvg. The other half of the method is ``loss=mmd``, which keeps
    the features close to those of the received backbone.

    In the released code Gumbel noise is added before the softmax, in evaluation too, and v is
    random in the first round.
    """

    traits = frozenset({CHANGES_HEAD_INPUT, SENDS_KEPT, SENDS_OTHER})
    private_names = (_HEAD, "personalization.context")
    takes_only_merged = True
    takes_tokens = False
    has_global = False
    needs = {LINEAR_HEAD: "head: personalization=fedcp needs a linear classifier; use head=linear"}
    forbids = {
        LEFT_OUT_HEAD: "personalization=fedcp: clients send the mean of the shared head and a "
        "trained private head, but model.train leaves out the head; add head to model.train"
    }
    context: Tensor

    def create(self, network: Network, loss: Loss) -> None:
        """Make the policy network, the private head, and a buffer for v / ||v||.

        The buffer is stored with a personal model, which needs it.
        """
        layer = network.head.linear
        assert isinstance(layer, nn.Linear)
        self.policy = PolicyNetwork(network.feature_dim)
        self.head = deepcopy(layer)  # what model.train leaves out stays fixed in the copy, too
        self.register_buffer("context", torch.zeros(network.feature_dim))

    def phases(self, epochs: float) -> Sequence[Phase]:
        """One phase, in which the shared head is frozen."""
        return (Phase(epochs, trainable=("backbone.", "loss.", "personalization.")),)

    @torch.no_grad()
    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute v / ||v|| from the private head."""
        self.context.copy_(F.normalize(self.head.weight.sum(dim=0), dim=0))

    def apply_head(self, head: nn.Module, z: Tensor) -> Tensor:
        """The sum of both heads' logits, [B, C]."""
        shared, private = self.policy(z * self.context)
        logits: Tensor = head(shared * z) + self.head(private * z)
        return logits

    def upload(self, client: Client, weights: Tensors, memory: Memory) -> Tensors:
        """Send the mean of the shared and the private head in place of the shared head."""
        private = {
            f"head.linear.{name.removeprefix(_HEAD)}": value
            for name, value in client.weights.items()
            if name.startswith(_HEAD)
        }
        return weights | {name: (weights[name] + value) / 2 for name, value in private.items()}
