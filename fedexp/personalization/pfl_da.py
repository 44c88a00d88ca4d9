"""PFL-DA: private bodies and a shared head, and a private head that stays near the shared one."""

from copy import deepcopy

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from fedexp.config.compatibility.traits import LINEAR_HEAD
from fedexp.contract import Client, Forward, Loss, Memory, Network, PartMessage, Setting
from fedexp.heads.linear import Linear
from fedexp.personalization.lg_fedavg import LGFedAvg


class PFLDA(LGFedAvg):
    """The body (backbone) is private, the head is shared, and a second head w_k predicts (PFL-DA).

    Body and shared head train together, so that the bodies of all clients map their different
    inputs to features that one head can classify (Shi and Kontar, Technometrics 2023). The private
    head w_k answers that the same input may have different labels at different clients. It is
    trained in the same steps on the features, which it does not change, with the loss

        $CE(w_k(z), y) + lam / 2 ||w_k - w||^2$

    w is the received head. The personal model is the body with w_k.

    The paper's text was not compared; the penalty is our reading. In the authors' code for images
    w_k becomes 0.99 w + 0.01 w_k after each of its steps, and all heads have equal weights in the
    average. In PFLlib w_k is trained before body and shared head, and its penalty has no gradient.

    Args:
        lam: weight of the penalty.
    """

    takes_only_merged = True
    takes_tokens = False
    needs = {LINEAR_HEAD: "personalization=pfl_da: the private head is linear; use head=linear"}
    received: Tensor

    def __init__(self, lam: NonNegativeFloat) -> None:
        super().__init__()
        self.lam = lam

    def create(self, network: Network, loss: Loss) -> None:
        """Make the private head w_k, a copy of the initial head."""
        assert isinstance(network.head, Linear)
        self.head = deepcopy(network.head.linear)

    def setup(self, setting: Setting) -> None:
        """Make a buffer for the received head, all its numbers in a row."""
        size = _flat(self.head).shape
        self.register_buffer("received", torch.zeros(size), persistent=False)

    @torch.no_grad()
    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Store the received head."""
        self.received.copy_(_flat(client.head))

    def term(self, batch: Forward) -> Tensor:
        """The private head's loss, a scalar."""
        losses = F.cross_entropy(self.head(batch.z.detach()), batch.targets, reduction="none")
        own = _flat(self.head)
        return batch.mean(losses) + 0.5 * self.lam * (own - self.received).square().sum()

    def personalize(self, z: Tensor, logits: Tensor) -> Tensor:
        """The private head's logits [B, C]."""
        own: Tensor = self.head(z)
        return own


def _flat(layer: nn.Module) -> Tensor:
    """All numbers of the layer's parameters in a row."""
    return torch.cat([each.flatten() for each in layer.parameters()])
