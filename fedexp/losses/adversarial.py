"""ADCOL: a discriminator at the server tells clients by their features, and clients prevent it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Generator, Tensor

from fedexp.config.compatibility.traits import COMPARES_WITH_MODEL
from fedexp.contract import Client, Forward, Loss, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.randomness import torch_generator
from fedexp.core.server_training import train_classifier
from fedexp.core.transfer import to_device
from fedexp.regularizers.anchors import Anchors

_LAYERS = 3


def first_discriminator(widths: Sequence[int], generator: Generator) -> Tensors:
    """The initial weights of linear layers with these widths, as PyTorch draws them."""
    weights = {}
    for layer in range(_LAYERS):
        before, after = widths[layer], widths[layer + 1]
        for name, shape in (("weight", (after, before)), ("bias", (after,))):
            drawn = 2 * torch.rand(shape, generator=generator) - 1
            weights[f"{layer}.{name}"] = drawn / before**0.5
    return weights


def discriminate(weights: Tensors | Anchors, z: Tensor) -> Tensor:
    """The logits [B, N] of the clients for features ``z`` [B, d], by Linear-ReLU layers."""
    for layer in range(_LAYERS):
        z = z if layer == 0 else z.relu()
        z = F.linear(z, weights[f"{layer}.weight"], weights[f"{layer}.bias"])
    return z


def away_from_uniform(logits: Tensor, clients: Tensor) -> Tensor:
    """The divergence KL(u || p) [B] of the predictions p from the uniform distribution u.

    Args:
        logits: [B, N]; p is their softmax.
        clients: [m] the numbers of the m clients among which u is uniform.
    """
    losses: Tensor = -F.log_softmax(logits, dim=1)[:, clients].mean(dim=1)
    return losses - torch.full((), len(clients), device=logits.device).log()


class Adversarial(Loss):
    """Cross-entropy + mu * the divergence of a discriminator's predictions from uniform (ADCOL).

    After its training, a client sends the features of all its samples. With them the server trains
    the discriminator D: features [d] -> the client, one of N. In the next rounds clients get D, and
    the loss of a sample is

        $CE + mu KL(u || softmax(D(z)))$

    with the uniform distribution u over the clients that have data (Li et al., ICML 2023). So the
    features of all clients get the same distribution. D is Linear-ReLU-Linear-ReLU-Linear; in the
    first round it has its random initial weights. It is trained with SGD without momentum, and in
    later rounds goes on from its weights; training that diverges is undone. The features are those
    of the trained model, in eval mode and without augmentation; the server needs memory for the
    features of a cohort.

    In the paper all clients take part in all rounds. Here D is trained on the clients of a cohort.
    FL-bench's D has BatchNorm, its features come from the steps of the last epoch, and it averages
    the clients' models, as with ``personalization=none``.

    Args:
        mu: weight of the divergence.
        hidden: width of D's two hidden layers.
        epochs: the server's passes over the features of a cohort.
        batch_size: features in a step of the server.
        lr: the server's learning rate.
    """

    unread_if = {name: {"mu": (0,)} for name in ("hidden", "epochs", "batch_size", "lr")}
    traits = frozenset({COMPARES_WITH_MODEL})
    saved = ("weights", "rounds")

    def __init__(
        self,
        mu: NonNegativeFloat,
        hidden: PositiveInt,
        epochs: PositiveInt,
        batch_size: PositiveInt,
        lr: PositiveFloat,
    ) -> None:
        super().__init__()
        self.mu, self.hidden = mu, hidden
        self.epochs, self.batch_size, self.lr = epochs, batch_size, lr
        self.rounds = 0

    def setup(self, setting: Setting) -> None:
        """Draw D's initial weights. Make buffers for the clients' copy of D."""
        self.seed = setting.seed
        widths = (setting.feature_dim, self.hidden, self.hidden, setting.num_clients)
        self.weights = first_discriminator(widths, torch_generator(self.seed, "discriminator"))
        self.with_data = setting.clients.sizes.nonzero().flatten()
        self.received = Anchors({name: value.shape for name, value in self.weights.items()})

    def broadcast(self, round: int) -> Tensors:
        """Send D."""
        return dict(self.weights)

    def receive(self, message: PartMessage) -> None:
        """Load D. The initial weights are on the CPU."""
        device = next(self.buffers()).device
        self.with_data = to_device(self.with_data, device)
        self.received.fill({name: to_device(w, device) for name, w in message.extras.items()})

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        labels = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        away = away_from_uniform(discriminate(self.received, batch.z), self.with_data)
        return batch.mean(labels + self.mu * away)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The features [n, d] of the client's samples."""
        return {"features": client.features()[0].clone()}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Train D on the features of the cohort."""
        features = [update.extras["features"] for update in updates]
        clients = torch.tensor([update.client for update in updates])
        sizes = torch.tensor([len(each) for each in features])
        self.rounds += 1
        self.weights = train_classifier(
            discriminate,
            self.weights,
            torch.cat(features),
            to_device(clients.repeat_interleave(sizes), features[0].device),
            self.epochs,
            self.batch_size,
            self.lr,
            torch_generator(self.seed, "discriminator_batches", self.rounds),
        )
