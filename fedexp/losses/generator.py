"""FedGen's generator of features, and how the server trains the generator."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from fedexp.core.forward import is_of_class
from fedexp.core.messages import Tensors
from fedexp.core.transfer import to_device


class FeatureGenerator(nn.Module):
    """The generator G: (noise [B, m], labels [B]) -> features [B, d].

    The input is the noise and the one-hot label, m + C numbers. The layers are Linear(m + C, h),
    BatchNorm, ReLU and Linear(h, d), where h is the width ``hidden``.
    """

    def __init__(self, noise_dim: int, hidden: int, num_classes: int, feature_dim: int) -> None:
        super().__init__()
        self.noise_dim, self.num_classes = noise_dim, num_classes
        self.first = nn.Linear(noise_dim + num_classes, hidden)
        self.norm = nn.BatchNorm1d(hidden)
        self.last = nn.Linear(hidden, feature_dim)

    def forward(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Make features [B, d]."""
        inputs = torch.cat([noise, is_of_class(labels, self.num_classes).float()], dim=1)
        features: Tensor = self.last(F.relu(self.norm(self.first(inputs))))
        return features

    @torch.no_grad()
    def folded(self) -> Tensors:
        """The weights for ``generate``; BatchNorm in eval mode is folded into the first layer."""
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        scale = self.norm.weight / (self.norm.running_var + self.norm.eps).sqrt()
        return {
            "first_weight": scale.unsqueeze(1) * self.first.weight,
            "first_bias": scale * (self.first.bias - self.norm.running_mean) + self.norm.bias,
            "last_weight": self.last.weight.clone(),
            "last_bias": self.last.bias.clone(),
        }


def generate(folded: Tensors, noise: Tensor, labels: Tensor) -> Tensor:
    """Make features [B, d] from noise [B, m] and labels [B].

    ``folded`` are the weights that ``FeatureGenerator.folded`` returns.
    """
    num_classes = folded["first_weight"].shape[1] - noise.shape[1]
    inputs = torch.cat([noise, is_of_class(labels, num_classes).float()], dim=1)
    hidden = F.relu(F.linear(inputs, folded["first_weight"], folded["first_bias"]))
    return F.linear(hidden, folded["last_weight"], folded["last_bias"])


def label_shares(seen: Tensor) -> Tensor:
    """Client k's weight for class y: v_k(y) = (1 + s_ky) / sum over clients j of (1 + s_jy).

    Args:
        seen: s [K, C]. s_ky is how often client k trained on a sample of class y.

    Returns:
        v [K, C]; each column sums to 1.
    """
    return (1 + seen) / (1 + seen).sum(dim=0)


def ensemble_loss(logits: Sequence[Tensor], labels: Tensor, shares: Tensor) -> Tensor:
    """The weighted cross-entropy of the K clients' heads, a scalar.

    It is sum_k mean_b v_k(y_b) CE(logits_kb, y_b) over the clients k and the samples b. CE is the
    cross-entropy, and v_k(y_b) is client k's weight for the class y_b of the sample.

    The released code multiplies losses [B] by weights [B, 1]. Broadcasting gives [B, B], so its
    result is sum_k (mean_b v_k(y_b)) (mean_b CE(logits_kb, y_b)). In this result a client has the
    same weight for all samples.

    Args:
        logits: for each client, the logits [B, C] of its head.
        labels: the samples' classes y [B].
        shares: the weights v [K, C], see ``label_shares``.
    """
    losses = torch.stack([F.cross_entropy(each, labels, reduction="none") for each in logits])
    return (shares[:, labels] * losses).mean(dim=1).sum()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """A loss, a scalar, that is small if different noise gives different features.

    It is exp(-a), where a is the mean of msd_ij * mad_ij over all pairs of samples i, j, including
    i = j. msd_ij is the mean squared difference of the two samples' noise over the
    dimensions. mad_ij is the mean absolute difference of their features.

    Args:
        noise: [B, m].
        features: [B, d].
    """
    apart = torch.cdist(features, features, p=1) / features.shape[1]
    exact = "donot_use_mm_for_euclid_dist"
    different = torch.cdist(noise, noise, compute_mode=exact).square() / noise.shape[1]
    return torch.exp(-(different * apart).mean())


class GeneratorTraining:
    """Trains the server's generator G.

    The optimizer is Adam with an L2 penalty. Its state is kept from round to round. In the r-th
    call of ``train``, counted from 0, the learning rate is ``lr * lr_decay^r``. The loss is
    ``ensemble_loss + diversity * diversity_loss``, with G in train mode.

    This class is not an ``nn.Module``, because the client's model must not contain G's parameters.
    """

    def __init__(
        self,
        generator: FeatureGenerator,
        steps: int,
        batch_size: int,
        lr: float,
        lr_decay: float,
        weight_decay: float,
        diversity: float,
    ) -> None:
        self.generator = generator
        self.steps, self.batch_size, self.diversity = steps, batch_size, diversity
        self.lr, self.lr_decay = lr, lr_decay
        self.optimizer = torch.optim.Adam(
            generator.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay
        )
        self.rounds = 0

    def train(
        self, heads: Sequence[Callable[[Tensor], Tensor]], seen: Tensor, draw: Generator
    ) -> float:
        """Train G for one round and return the loss of the last step.

        Args:
            heads: each client's head, features [B, d] -> logits [B, C].
            seen: [K, C], see ``label_shares``. Labels are drawn from the classes that at least one
                client of the cohort trained on.
            draw: the random generator of the noise, uniform in [0, 1), and of the labels.
        """
        self.optimizer.param_groups[0]["lr"] = self.lr * self.lr_decay**self.rounds
        self.rounds += 1
        self.generator.to(seen.device).train()
        held, shares = seen.sum(dim=0).nonzero().flatten(), label_shares(seen)
        for _ in range(self.steps):
            chosen = torch.randint(len(held), (self.batch_size,), generator=draw)
            noise = torch.rand(self.batch_size, self.generator.noise_dim, generator=draw)
            labels, noise = held[to_device(chosen, held.device)], to_device(noise, held.device)
            features = self.generator(noise, labels)
            loss = ensemble_loss([head(features) for head in heads], labels, shares)
            loss = loss + self.diversity * diversity_loss(noise, features)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        return loss.item()

    def state_dict(self) -> dict[str, Any]:
        """The generator, the optimizer's state and the number of calls of ``train``."""
        return {
            "generator": self.generator.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rounds": self.rounds,
        }

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Load the result of ``state_dict``; the generator moves to ``device``."""
        self.generator.to(device).load_state_dict(state["generator"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.rounds = state["rounds"]
