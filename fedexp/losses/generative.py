"""FedGen: the server trains a generator, and clients learn from the features that it makes."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import (
    CHANGES_HEAD_INPUT,
    COMPARES_WITH_MODEL,
    DERIVES_CLASSIFIER,
    RUNNING_STATISTICS,
    UNTRAINED_CLASSIFIER,
)
from fedexp.contract import Client, Forward, Loss, Memory, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.forward import is_of_class, mean_over
from fedexp.core.randomness import key, seeded, torch_generator, uniform
from fedexp.errors import InputError
from fedexp.losses.distillation import distillation
from fedexp.losses.generator import FeatureGenerator, GeneratorTraining, generate

_LEAST_WEIGHT = 1e-4


class Generative(Loss):
    """Cross-entropy and two terms that learn from the server's generator of features (FedGen).

    The loss is $CE(h(z), y) + a_t CE(h(G(y~)), y~) + b_t KL(h(G(y)) || h(z))$ (Zhu et al., ICML
    2021, as released). CE is the cross-entropy, h is the client's head, and z are the features of
    the batch. G is the server's generator: G(y) are features made from noise and the labels y of
    the batch. y~ are labels drawn uniformly from all classes, as many as the batch has samples. The
    second term trains only the head. The teacher $h(G(y))$ in the third term gets no gradient.

    t counts rounds from 0. The weights are $a_t = max(0.0001, a decay^t)$ and
    $b_t = max(0.0001, b decay^t)$. In round 0 there is no G yet, so the second and third terms are
    0. Both terms act in all local epochs; the released code drops both after 20 epochs.

    After local training, the server trains G so that the cohort's heads predict the label y from
    the features G(y) (``GeneratorTraining``). A client reports how often it trained on each class.
    In G's loss a client's head has a larger weight on classes that the client trained on often. (By
    a broadcasting bug in the released code, a client's head has the same weight for all samples of
    a batch, see ``ensemble_loss``.) Clients get G in eval mode, with its BatchNorm folded into the
    first layer.

    Args:
        generated_weight: a, the first value of a_t.
        distillation_weight: b, the first value of b_t.
        decay: factor that multiplies a_t and b_t after each round.
        noise_dim: m, the number of noise values for one feature vector.
        hidden: width of G's hidden layer.
        steps: steps of G's optimizer in a round.
        batch_size: feature vectors that G makes in a step. At least 2, because G has BatchNorm.
        lr: learning rate of G in the first round.
        lr_decay: factor that multiplies the learning rate after each round.
        weight_decay: L2 penalty on G.
        diversity: eta, weight of ``diversity_loss``, which makes features from different noise
            differ.
    """

    traits = frozenset({COMPARES_WITH_MODEL})  # the server's generator learns from the heads
    forbids = {
        UNTRAINED_CLASSIFIER: "loss=generative: the generator learns from the heads that the "
        "clients train; with this {other} the global model uses a different head",
        DERIVES_CLASSIFIER: "loss=generative: the generator learns from the weights of the "
        "clients' heads; this {other} computes its classifier from class means instead; use "
        "head=linear",
        RUNNING_STATISTICS: "loss=generative: generated features would change the running "
        "statistics of this {other}; use head.feature_norm=l2",
        CHANGES_HEAD_INPUT: "loss=generative: the generator learns from the clients' heads alone, "
        "but this {other} changes the features before the head; use another {other}",
    }
    weights: Tensor
    key: Tensor

    def __init__(
        self,
        generated_weight: NonNegativeFloat,
        distillation_weight: NonNegativeFloat,
        decay: Annotated[float, Field(gt=0, le=1)],
        noise_dim: PositiveInt,
        hidden: PositiveInt,
        steps: PositiveInt,
        batch_size: Annotated[int, Field(ge=2)],
        lr: PositiveFloat,
        lr_decay: Annotated[float, Field(gt=0, le=1)],
        weight_decay: NonNegativeFloat,
        diversity: NonNegativeFloat,
    ) -> None:
        super().__init__()
        self.first_weights, self.decay = (generated_weight, distillation_weight), decay
        self.noise_dim, self.hidden = noise_dim, hidden
        self._training = (steps, batch_size, lr, lr_decay, weight_decay, diversity)
        self._metrics: dict[str, float] = {}

    def setup(self, setting: Setting) -> None:
        """Make the generator G, and buffers for the clients' copy of G.

        Raises InputError if heads are private.
        """
        head_names = {name for name in setting.model.parameters if name.startswith("head.")}
        if private := sorted(head_names - setting.model.shared):
            raise InputError(
                f"loss=generative: the server needs the clients' heads, but {private[0]} is not "
                "sent; use a personalization that shares the head"
            )
        self.setting = setting
        with seeded(setting.seed, "feature_generator"):
            generator = FeatureGenerator(
                self.noise_dim, self.hidden, setting.num_classes, setting.feature_dim
            )
        self.training_of_generator = GeneratorTraining(generator, *self._training)
        for name, value in generator.folded().items():
            self.register_buffer(name, torch.zeros_like(value), persistent=False)
        self.register_buffer("weights", torch.zeros(2), persistent=False)
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    # The server's half.

    def broadcast(self, round: int) -> Tensors:
        """Send the generator G, or nothing if G is not yet trained."""
        training = self.training_of_generator
        if not training.rounds:
            return {}
        return {name: w.to(self.key.device) for name, w in training.generator.folded().items()}

    def extract(self, weights: Tensors, current: Tensors) -> Tensors:
        """Select the parameters of the client's head, which the generator's training needs."""
        return {name: w for name, w in weights.items() if name.startswith("head.")}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Train the generator G so that the cohort's heads predict the labels of its features."""
        training = self.training_of_generator
        head = self.setting.server.head(training.rounds + 1)
        reports = [update.extras for update in updates]
        loss = training.train(
            [partial(head, report) for report in reports],
            torch.stack([report["seen"] for report in reports]),
            torch_generator(self.setting.seed, "train_generator", training.rounds),
        )
        self._metrics = {"generator/loss": loss}

    def metrics(self) -> dict[str, float]:
        """The generator's loss in the last step of its training."""
        return self._metrics

    def server_state(self) -> dict[str, Any]:
        """The state of the generator and of the optimizer that trains it."""
        return self.training_of_generator.state_dict()

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self.training_of_generator.load_state_dict(state, self.key.device)

    # The client's half.

    def receive(self, message: PartMessage) -> None:
        """Load the generator G, and set the weights a_t and b_t of the two terms that use G.

        If the message has no G, both weights are 0.
        """
        for name, tensor in message.extras.items():
            self.get_buffer(name).copy_(tensor)
        factor = self.decay ** (message.round - 1)
        decayed = [max(_LEAST_WEIGHT, first * factor) for first in self.first_weights]
        for position, weight in enumerate(decayed if message.extras else [0.0, 0.0]):
            self.weights[position].fill_(weight)  # copy_ from the CPU would wait for the device
        self.key.fill_(key(self.setting.seed, "generated_features", message.round))

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the key of the random draws, which differs between clients."""
        own = key(self.setting.seed, "generated_features", message.round, client.data.client)
        self.key.fill_(own)

    def forward(self, batch: Forward) -> Tensor:
        """The loss, a scalar."""
        assert batch.head is not None
        count, classes = len(batch.targets), self.setting.num_classes
        drawn = uniform(self.key, batch.step, count, 1 + 2 * self.noise_dim)
        labels = (drawn[:, 0] * classes).long()
        noise, more_noise = drawn[:, 1:].chunk(2, dim=1)
        teacher = batch.head(self._generate(more_noise, batch.targets))
        distilled = distillation(batch.logits, teacher)
        losses = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        generated = self._generated_loss(batch, labels, self._generate(noise, labels))
        return batch.mean(losses + self.weights[1] * distilled) + self.weights[0] * generated

    def measure(self, batch: Forward) -> Tensors:
        """The number of samples of each class in the batch, [C], named ``seen``."""
        classes = is_of_class(batch.targets, self.setting.num_classes).float()
        real = 1 if batch.real is None else batch.real.unsqueeze(1)
        return {"seen": (classes * real).sum(dim=0)}

    def report(self, client: Client, memory: Memory) -> Tensors:
        """How often local training used a sample of each class, [C], named ``seen``."""
        return {"seen": client.measured(self)["seen"]}

    def _generate(self, noise: Tensor, labels: Tensor) -> Tensor:
        """Make features [B, d] with the client's copy of the generator."""
        names = ("first_weight", "first_bias", "last_weight", "last_bias")
        return generate({name: self.get_buffer(name) for name in names}, noise, labels)

    def _generated_loss(self, batch: Forward, labels: Tensor, features: Tensor) -> Tensor:
        """Mean cross-entropy of the features [B, d] whose label has a logit other than -inf."""
        assert batch.head is not None
        logits = batch.head(features)
        losses = F.cross_entropy(logits, labels, reduction="none")
        included = (~logits.gather(1, labels.unsqueeze(1)).squeeze(1).isneginf()).float()
        return mean_over(losses, included if batch.real is None else included * batch.real)
