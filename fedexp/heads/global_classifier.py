"""The base of heads with two classifiers: the clients train one, the server trains the other."""

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fedexp.config.compatibility.traits import UNTRAINED_CLASSIFIER, Need
from fedexp.core.messages import PartMessage
from fedexp.core.server_training import diverged
from fedexp.core.transfer import to_device
from fedexp.heads.linear import Linear


def trained_classifier(
    weight: Tensor,
    features: Tensor,
    labels: Tensor,
    epochs: int,
    batch_size: int,
    lr: float,
    generator: Generator,
) -> Tensor:
    """Train a linear classifier as ``core.server_training.train_classifier`` does, but faster.

    ``weight`` [C, d + 1] is the initial weight with the bias as last column; it does not change.
    The other arguments, and what happens if training diverges, are those of that function. Returns
    the trained weight [C, d + 1].
    """
    device = features.device
    # The bias is the last column of the weight, so each feature gets a last entry 1. The gradient
    # is computed by its formula: autograd would take several times as long for such small steps.
    before = weight.to(device)
    weight = before.clone()
    inputs = F.pad(features, (0, 1), value=1.0)
    targets = torch.eye(len(weight), device=device)[labels]
    for _ in range(epochs):
        order = to_device(torch.randperm(len(inputs), generator=generator), device)
        for batch in torch.split(order, batch_size):
            z = inputs[batch]
            errors = (z @ weight.T).softmax(dim=1) - targets[batch]
            weight.addmm_(errors.T, z, alpha=-lr / len(batch))
    return before if diverged([weight]) else weight


class GlobalClassifier(Linear):
    """A linear head W that clients train as in FedAvg, and a classifier V of the server.

    The global model predicts with V if ``is_global`` is true, else with W. W is sent, trained and
    averaged as with ``head=linear``, so local and personal models are exactly those of FedAvg.

    Args:
        feature_dim: d.
        num_classes: C.
        bias: whether W has a bias.
        own_bias: whether V has a bias. The bias is V's last column.

    Attributes:
        retrained: V of the currently loaded model, [C, d] or [C, d + 1].
        is_global: whether the model predicts with V instead of W.
    """

    takes_tokens = False
    traits = frozenset({UNTRAINED_CLASSIFIER})
    needs = {
        Need.GLOBAL_MODEL: "head: the server trains a classifier for the global model, which this "
        "method lacks; use head=linear"
    }
    derived = ("retrained", "is_global")
    summed = True
    retrained: Tensor
    is_global: Tensor

    def __init__(self, feature_dim: int, num_classes: int, bias: bool, own_bias: bool) -> None:
        super().__init__(feature_dim, num_classes, bias)
        self.own_bias = own_bias
        layer = nn.Linear(feature_dim, num_classes)
        fresh = self._kept(torch.column_stack([layer.weight, layer.bias]).detach())
        self.register_buffer("retrained", fresh)
        self.register_buffer("is_global", torch.tensor(True))

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        weight, bias = self.retrained[:, : z.shape[1]], None
        if self.own_bias:
            bias = self.retrained[:, -1]
        return torch.where(self.is_global, F.linear(z, weight, bias), super().forward(z))

    def prototypes(self) -> Tensor:
        """Class prototypes [C, d]: the rows of the classifier that the model predicts with.

        This is the server's V if ``is_global`` is true, else the clients' W.
        """
        own = super().prototypes()
        return torch.where(self.is_global, self.retrained[:, : own.shape[1]], own)

    def receive(self, message: PartMessage) -> None:
        """Load the server's classifier V from the message and predict with it.

        If the message has no V, predict with the clients' classifier W.
        """
        if "retrained" in message.extras:
            self.retrained.copy_(message.extras["retrained"])
        self.is_global.fill_("retrained" in message.extras)

    def _kept(self, weight: Tensor) -> Tensor:
        """Get the server's classifier V from a trained weight [C, d + 1].

        The last column, the bias, is removed if V has no bias.
        """
        return weight if self.own_bias else weight[:, :-1].contiguous()
