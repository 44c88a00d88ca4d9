"""FedDBE: a private vector is added to the features, whose mean is pulled to the mean of all."""

from collections.abc import Sequence

import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn

from fedexp.config.compatibility.traits import CHANGES_HEAD_INPUT
from fedexp.contract import (
    Client,
    Forward,
    Loss,
    Memory,
    Network,
    PartMessage,
    PartUpdate,
    Personalization,
    Setting,
    Tensors,
)
from fedexp.core.transfer import to_device


def mean_of_means(means: Tensor, sizes: Tensor) -> Tensor:
    """The mean feature [d] of all samples, from the clients' mean features.

    Args:
        means: [K, d], each client's mean feature.
        sizes: [K], each client's number of samples.
    """
    shares = sizes.double() / sizes.sum()
    return (shares @ means.double()).to(means.dtype)


class FedDBE(Personalization):
    """The head gets $z + b_k$ with a private vector b_k (Zhang et al., NeurIPS 2023).

    b_k takes up the bias of the features of client k. It starts from 0 and is trained with the
    other weights. A term of the loss pulls the mean feature of a batch to the vector g:

        $kappa / d ||mean z - g||^2$

    g is the mean feature after one round of plain training; it never changes. In this first round
    clients train as in FedAvg, without b_k and the term, and report the mean of the trained model's
    features z. Then the server computes g from the cohort's reports. In the released code
    all clients train once for g, whatever the size of a cohort, and this training is dropped.

    The paper keeps the mean of z over several batches, in which a new batch has a weight, the
    momentum. The momentum is 1 here, as for the paper's small network, so the mean is that of the
    batch. The released code halves the term, and trains b_k with SGD without momentum.

    Args:
        kappa: weight of the term.
    """

    traits = frozenset({CHANGES_HEAD_INPUT})
    private_names = ("personalization.",)
    saved = ("global_mean",)
    mean: Tensor
    is_known: Tensor

    def __init__(self, kappa: NonNegativeFloat) -> None:
        super().__init__()
        self.kappa = kappa
        self.global_mean: Tensor | None = None

    def create(self, network: Network, loss: Loss) -> None:
        """Make the private vector b_k."""
        self.bias = nn.Parameter(torch.zeros(network.feature_dim))

    def setup(self, setting: Setting) -> None:
        """Make buffers for g, and for whether g is known (0 or 1)."""
        self.register_buffer("mean", torch.zeros(setting.feature_dim), persistent=False)
        self.register_buffer("is_known", torch.zeros(()), persistent=False)

    def broadcast(self, round: int) -> Tensors:
        """Send g, if it is known."""
        return {} if self.global_mean is None else {"mean": self.global_mean}

    def receive(self, message: PartMessage) -> None:
        """Load g, if the server sent it."""
        self.is_known.fill_(1 if message.extras else 0)
        if message.extras:
            self.mean.copy_(message.extras["mean"])

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """If g is unknown, remember for ``report`` that the server needs the mean feature."""
        if not message.extras:
            memory["asked"] = torch.ones((), device=client.device)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The mean [d] of the client's features, as long as g is unknown."""
        is_asked = memory.pop("asked", None) is not None
        return {"mean": client.features()[0].mean(dim=0)} if is_asked else {}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Compute g from the reports, if it is unknown."""
        reports = [each for each in updates if each.extras]
        if self.global_mean is None and reports:
            means = torch.stack([each.extras["mean"] for each in reports])
            sizes = torch.tensor([each.num_samples for each in reports])
            self.global_mean = mean_of_means(means, to_device(sizes, means.device))

    def apply_head(self, head: nn.Module, z: Tensor) -> Tensor:
        """The head's logits [B, C] for $z + b_k$. As long as g is unknown, b_k is not trained."""
        bias = self.bias.detach() + self.is_known * (self.bias - self.bias.detach())
        logits: Tensor = head(z + bias)
        return logits

    def term(self, batch: Forward) -> Tensor:
        """The pull of the batch's mean feature to g, a scalar; 0 as long as g is unknown."""
        distance = (batch.mean(batch.z) - self.mean).square().mean()
        return self.kappa * self.is_known * distance
