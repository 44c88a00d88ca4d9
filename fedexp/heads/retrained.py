"""CReFF: the global model's classifier is retrained on features that the server learns."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Generator, Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.compatibility import UNTRAINED_CLASSIFIER
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.randomness import torch_generator
from fedexp.heads.linear import Linear

_EPS = 1e-6


def class_gradients(features: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
    """Gradients of each class's mean cross-entropy with respect to a linear classifier.

    Row j of class c's gradient is mean_i (softmax(V z_i)_j - [j = c]) z_i.

    Args:
        features: z [A, n, d], n features of each of A classes.
        labels: [A] these classes.
        weight: V [C, d], without bias.

    Returns:
        [A, C, d]; differentiable in ``features``.
    """
    probabilities = (features @ weight.T).softmax(dim=2)
    errors = probabilities - F.one_hot(labels, len(weight)).unsqueeze(1)
    gradients: Tensor = errors.transpose(1, 2) @ features / features.shape[1]
    return gradients


def mismatch(gradients: Tensor, targets: Tensor) -> Tensor:
    """Sum over classes and rows of V of 1 - cosine, for two [A, C, d] of gradients; a scalar.

    1e-6 is added to the cosine's denominator.
    """
    products = (gradients * targets).sum(dim=2)
    lengths = torch.linalg.vector_norm(gradients, dim=2) * torch.linalg.vector_norm(targets, dim=2)
    distances: Tensor = 1 - products / (lengths + _EPS)
    return distances.sum()


def match_gradients(
    features: Tensor, labels: Tensor, targets: Tensor, weight: Tensor, steps: int, lr: float
) -> Tensor:
    """Features whose ``class_gradients`` point where ``targets`` do: plain gradient descent.

    Args:
        features: [A, n, d] to start from.
        labels: [A] their classes.
        targets: [A, C, d] gradients of the same classes.
        weight: V [C, d].
        steps: on ``mismatch``.
        lr: their learning rate.

    Returns:
        [A, n, d], without gradient.
    """
    for _ in range(steps):
        features = features.detach().requires_grad_()
        loss = mismatch(class_gradients(features, labels, weight), targets)
        (gradient,) = torch.autograd.grad(loss, features)
        features = features.detach() - lr * gradient
    return features.detach()


def retrained_classifier(
    features: Tensor, epochs: int, batch_size: int, lr: float, generator: Generator
) -> Tensor:
    """The weight [C, d] of a fresh linear layer, trained with a bias that is then dropped.

    Cross-entropy and plain SGD over shuffled batches; the layer starts as PyTorch's does, uniform
    in +-1 / sqrt(d).

    Args:
        features: [C, n, d], n features of each class.
        epochs: passes over all features.
        batch_size: features in a step.
        lr: learning rate.
        generator: of the first weights and the order.
    """
    classes, count, dim = features.shape
    device = features.device
    # The bias is the last column, for an input of 1. Not nn.Linear and an optimizer: the gradient
    # has a short formula, and a step so small takes several times as long through autograd.
    start = (2 * torch.rand(classes, dim + 1, generator=generator) - 1) / dim**0.5
    weight = start.to(device)
    inputs = F.pad(features.flatten(0, 1), (0, 1), value=1.0)
    targets = torch.eye(classes, device=device).repeat_interleave(count, dim=0)
    for _ in range(epochs):
        order = torch.randperm(len(inputs), generator=generator).to(device)
        for batch in torch.split(order, batch_size):
            z = inputs[batch]
            errors = (z @ weight.T).softmax(dim=1) - targets[batch]
            weight.addmm_(errors.T, z, alpha=-lr / len(batch))
    without_bias: Tensor = weight[:, :-1]
    return without_bias.contiguous()


class Retrained(Linear):
    """A linear head that clients train as in FedAvg, and another one, V, for the global model.

    CReFF (Shang et al., IJCAI 2022), as in the study of FedNH. The server has ``features`` F for
    each class, from N(0, 1), and V, at first a fresh linear layer. Before local training a client
    reports, for each class that it holds, the gradient of the mean cross-entropy with respect to V,
    with the received body in eval mode and V as the head. The server averages these over the
    clients that sent them, moves the features of these classes so that their gradients point the
    same way (``match_gradients``), and trains a new V on all features (``retrained_classifier``).

    Only the global model uses V. The trained head W is sent, trained and averaged as
    ``head=linear`` is, so that local and personal models are those of FedAvg to the bit.

    Args:
        feature_dim: d.
        num_classes: C.
        bias: whether the trained head W has an offset for each class; V has none.
        features: learnt features of each class.
        match_steps: steps of gradient matching in a round.
        match_lr: their learning rate.
        retrain_epochs: epochs of training V in a round.
        retrain_batch_size: features in a step of it.
        retrain_lr: its learning rate.
        draws: a client's gradient of a class is the mean over so many draws of its images.
        draw_size: images in a draw, without replacement and augmented as in local training; all of
            a class that has fewer.
    """

    takes_tokens = False
    traits = frozenset({UNTRAINED_CLASSIFIER})
    derived = ("retrained", "is_global")
    summed = True
    retrained: Tensor
    is_global: Tensor

    def __init__(
        self,
        feature_dim: PositiveInt,
        num_classes: PositiveInt,
        bias: bool,
        features: PositiveInt,
        match_steps: NonNegativeInt,
        match_lr: PositiveFloat,
        retrain_epochs: PositiveInt,
        retrain_batch_size: PositiveInt,
        retrain_lr: PositiveFloat,
        draws: PositiveInt,
        draw_size: PositiveInt,
    ) -> None:
        super().__init__(feature_dim, num_classes, bias)
        self.features_per_class = features
        self.match_steps, self.match_lr = match_steps, match_lr
        self.retrain_epochs, self.retrain_lr = retrain_epochs, retrain_lr
        self.retrain_batch_size = retrain_batch_size
        self.draws, self.draw_size = draws, draw_size
        fresh = torch.nn.Linear(feature_dim, num_classes).weight.detach()
        self.register_buffer("retrained", fresh)
        self.register_buffer("is_global", torch.tensor(True))
        # The server's V: the buffer belongs to the model that is loaded at the moment.
        self._classifier = fresh.clone()
        self._round = 0
        self._metrics: dict[str, float] = {}

    def setup(self, setting: Setting) -> None:
        """The first features."""
        self.seed = setting.seed
        shape = (setting.num_classes, self.features_per_class, setting.feature_dim)
        self._features = torch.randn(shape, generator=torch_generator(self.seed, "head_features"))

    def forward(self, z: Tensor) -> Tensor:
        """Logits [B, C]."""
        return torch.where(self.is_global, F.linear(z, self.retrained), super().forward(z))

    def prototypes(self) -> Tensor:
        """The rows of V in the global model, of W in a client's."""
        return torch.where(self.is_global, self.retrained, super().prototypes())

    # The server's half.

    def broadcast(self, round: int) -> Tensors:
        """V."""
        return {"retrained": self._classifier.to(self.retrained.device)}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """Learn the features and train V; the weights stay as the aggregator merged them."""
        self._round += 1
        device = self.retrained.device
        senders = sums["senders"]
        classes = senders.nonzero().flatten()
        means = [sums[f"gradient/{label}"] / senders[label] for label in classes.tolist()]
        targets, labels = torch.stack(means).float().to(device), classes.to(device)
        features, weight = self._features.to(device), self._classifier.to(device)
        matched = match_gradients(
            features[labels], labels, targets, weight, self.match_steps, self.match_lr
        )
        reached = mismatch(class_gradients(matched, labels, weight), targets)
        self._metrics = {"retrained/mismatch": reached.item() / targets[..., 0].numel()}
        self._features = features.index_copy(0, labels, matched)
        self._classifier = retrained_classifier(
            self._features,
            self.retrain_epochs,
            self.retrain_batch_size,
            self.retrain_lr,
            torch_generator(self.seed, "retrained_head", self._round),
        )
        return merged

    def metrics(self) -> dict[str, float]:
        """Mean over classes and rows of 1 - cosine after the last step of gradient matching."""
        return self._metrics

    def server_state(self) -> dict[str, Any]:
        """The round, F and V."""
        return {"round": self._round, "features": self._features, "classifier": self._classifier}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self._round = state["round"]
        self._features, self._classifier = state["features"], state["classifier"]

    # The client's half.

    def receive(self, message: Message) -> None:
        """The global model: V is the head."""
        self.retrained.copy_(message.extras["head"]["retrained"])
        self.is_global.fill_(True)

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """Note the gradients of the received model, then take W as the head."""
        if not client.is_personal:
            memory.update(self._gradients(client))
        self.is_global.fill_(False)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """Each own class's gradient [C, d], and 1 for each own class [C]."""
        gradients = {name: memory.pop(name) for name in list(memory)}
        return gradients | {"senders": (client.data.class_counts > 0).float()}

    def _gradients(self, client: Client) -> Tensors:
        """``gradient/<class>`` -> [C, d], of the classes that the client holds."""
        labels = client.data.labels
        weight = self.retrained.clone().requires_grad_()
        weights = client.weights | {"head.retrained": weight}
        found = {}
        for label in client.data.class_counts.nonzero().flatten().tolist():
            own = (labels == label).nonzero().flatten()
            inputs = self._drawn_inputs(client, label, own)
            logits = client.logits_with(weights, inputs)
            loss = F.cross_entropy(logits, torch.full_like(labels[:1], label).expand(len(logits)))
            (found[f"gradient/{label}"],) = torch.autograd.grad(loss, weight)
        return found

    def _drawn_inputs(self, client: Client, label: int, own: Tensor) -> Tensor:
        """The images of all draws; as draws are equally large, their mean is the mean of means."""
        draw = torch_generator(self.seed, "head_gradients", client.round, client.data.client, label)
        orders = [torch.randperm(len(own), generator=draw) for _ in range(self.draws)]
        chosen = torch.cat([order[: self.draw_size] for order in orders])
        return client.data.inputs(own[chosen.to(own.device)], augment=draw)
