"""FedIIR: the gradient of the classifier on a batch is pulled to the mean over all clients."""

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT, COMPARES_WITH_MODEL, LINEAR_HEAD
from fedexp.contract import Client, Forward, Loss, Memory, PartMessage, Setting, Tensors
from fedexp.core.forward import is_of_class

Decay = Annotated[float, Field(ge=0, lt=1)]


def classifier_gradient(
    z: Tensor, logits: Tensor, targets: Tensor, real: Tensor | None = None
) -> Tensor:
    """The gradient [C, d + 1] of the mean cross-entropy for the weight and bias of a linear head.

    The last column is the gradient for the bias. The result is differentiable.

    Args:
        z: features [B, d].
        logits: [B, C].
        targets: labels [B].
        real: [B], 1 for a sample, 0 for padding; see ``Forward``.
    """
    errors = logits.softmax(dim=1) - is_of_class(targets, logits.shape[1]).to(logits)
    rows = z.new_ones(len(z)) if real is None else real.to(z.dtype)
    errors = errors * (rows / rows.sum().clamp(min=1)).unsqueeze(1)
    return errors.T @ F.pad(z, (0, 1), value=1.0)


class GradientAlignment(Loss):
    """Cross-entropy + penalty * the squared distance of the classifier's gradient from a mean.

    In each step the gradient of the batch's cross-entropy for the linear head is compared with G,
    the mean of the clients' gradients (Guo et al., ICML 2023). A client with a small distance uses
    features that predict in the same way at all clients. A head without bias is treated as if it
    had one. G is a moving average over the rounds, $G <- ema G + (1 - ema) g$, from G = 0. g is the
    mean gradient over all samples of a cohort.

    In the released code g is computed by the current cohort before it trains, in an exchange of its
    own. Here clients report the gradient at the model that they received, so the g of a round is
    used in the next round. Their gradient is that of all their samples, in eval mode; in the
    released code it is the mean over batches, in train mode.

    Args:
        penalty: weight of the squared distance.
        ema: the share of the old G in the new one.
    """

    summed = True
    traits = frozenset({COMPARES_WITH_MODEL})
    needs = {LINEAR_HEAD: "loss=gradient_alignment: needs a linear classifier; use head=linear"}
    forbids = {
        CHANGES_HEAD_INPUT: "loss=gradient_alignment: takes the features as they are, but this "
        "{other} changes them before the head; use another personalization"
    }
    unread_if = {"ema": {"penalty": (0,)}}
    saved = ("mean",)
    aim: Tensor

    def __init__(self, penalty: NonNegativeFloat, ema: Decay) -> None:
        super().__init__()
        self.penalty, self.ema = penalty, ema
        self.mean: Tensor | None = None

    def setup(self, setting: Setting) -> None:
        """Make a buffer for the clients' copy of G [C, d + 1]."""
        shape = (setting.num_classes, setting.feature_dim + 1)
        self.register_buffer("aim", torch.zeros(shape), persistent=False)

    def broadcast(self, round: int) -> Tensors:
        """Send G, after the first round."""
        return {} if self.mean is None else {"mean": self.mean}

    def receive(self, message: PartMessage) -> None:
        """Load G. If the server sent none, G is 0."""
        self.aim.zero_()
        for tensor in message.extras.values():
            self.aim.copy_(tensor)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute the sum of the gradients over the client's samples, under the received model."""
        if client.is_personal:
            return
        z, labels = client.features()
        with torch.no_grad():
            gradient = classifier_gradient(z, client.classify(z), labels)
        # The other parts may let the client train on fewer samples, so they are counted here.
        count = torch.full((), len(labels), device=gradient.device)
        memory.update(gradient=gradient * len(labels), count=count)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        labels = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        gradient = classifier_gradient(batch.z, batch.logits, batch.targets, batch.real)
        return batch.mean(labels) + self.penalty * (gradient - self.aim).square().sum()

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The sum of the gradients [C, d + 1], and the number of samples in it."""
        return {name: memory.pop(name) for name in ("gradient", "count")}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Update G; the weights do not change."""
        mean = (1 - self.ema) * (sums["gradient"] / sums["count"]).to(self.aim.dtype)
        self.mean = mean if self.mean is None else self.ema * self.mean + mean
        return merged
