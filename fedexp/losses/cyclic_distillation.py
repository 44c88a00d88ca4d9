"""MetaFed: a model goes from client to client, and each client's own model learns from it."""

import logging
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from fedexp.config.compatibility.traits import (
    COMPARES_WITH_MODEL,
    DERIVES_CLASSIFIER,
    OTHER_START,
    READS_ROUNDS,
    SENDS_KEPT,
)
from fedexp.contract import (
    Client,
    Forward,
    LocalData,
    Loss,
    Memory,
    Outputs,
    PartMessage,
    Setting,
    Tensors,
)
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.own_validation import MAY_KNOW_VALIDATION, own_validation, validation_samples

LOGGER = logging.getLogger(__name__)

_CHUNK = 1000
"""Largest number of samples in a forward pass that is not a training step."""

Accuracy = Annotated[float, Field(ge=0, le=1)]


def adapted_weight(lam: float, own: Tensor, teacher: Tensor, least: float) -> Tensor:
    """The weight of the distillation in the last stage, a scalar.

    It is $lam 10^min(1, 5 (A_t - A)) / 10$, or 0 if the teacher is not better than the own model
    and its accuracy is below ``least``.

    Args:
        lam: the weight in the first stage.
        own: A, the accuracy of the client's own model, a scalar.
        teacher: A_t, the teacher's accuracy, a scalar.
        least: see above.
    """
    weight: Tensor = lam * 10 ** (5 * (teacher - own)).clamp(max=1) / 10
    return weight.where((teacher > own) | (teacher >= least), 0)


class CyclicDistillation(Loss):
    """Cross-entropy + w * the mean squared difference from the received model's features (MetaFed).

    A client keeps its own model between its turns. The model that it receives is its teacher (Chen
    et al., 2023). With one client a round, ``sampler=round_robin``, the teacher is the model of the
    client before it. With more clients a round, it is the mean of the last cohort's models.

    The client trains its own model, with the distance of the features from the teacher's. But as
    long as its own model has not been good enough, it goes on from a copy of the teacher, and w is
    0. It is good enough once its accuracy on the client's own validation samples has exceeded
    ``threshold``. Most rounds accumulate common knowledge; there w is ``lam``. In the last rounds,
    as many as it takes to draw each client once, each client personalizes its own model: the
    teacher is the last model of the rounds before, for all clients, and ``adapted_weight`` is w.

    The released code trains each client's model alone for 30 epochs before the first round. Its
    validation samples are besides the training samples; here they are taken out of these. A
    personal model that is trained or tuned separately has no teacher.

    Args:
        lam: weight of the distance.
        threshold: the accuracy above which a client's own model is good enough.
        least: in the last rounds, a teacher that is not better than the own model is followed only
            if its accuracy is at least this number.
        validation: the share of a client's training samples that are its validation samples.
    """

    traits = frozenset({COMPARES_WITH_MODEL, OTHER_START, READS_ROUNDS, SENDS_KEPT})
    forbids = {
        DERIVES_CLASSIFIER: "loss=cyclic_distillation: compares the received model with the "
        "client's own; this {other} computes its classifier from class means, so both would have "
        "the same one; use head=linear"
    }
    discourages = MAY_KNOW_VALIDATION
    reference_models = ("global",)
    strength: Tensor

    def __init__(
        self,
        lam: NonNegativeFloat,
        threshold: Accuracy,
        least: Accuracy,
        validation: Annotated[float, Field(gt=0, lt=1)],
    ) -> None:
        super().__init__()
        self.lam, self.threshold = lam, threshold
        self.least, self.validation = least, validation

    def setup(self, setting: Setting) -> None:
        """Make a buffer for w, and compute the number of rounds of common knowledge.

        Warn if not all clients have a turn in these rounds.
        """
        self.register_buffer("strength", torch.zeros(()), persistent=False)
        self._seed = setting.seed
        cycle = -(-setting.clients.num_with_data // setting.most_updates)
        self._common_rounds = setting.rounds - cycle
        if self._common_rounds < cycle:
            LOGGER.warning(
                "rounds=%d: the last %d rounds personalize, and the rounds before are too few to "
                "draw each client once; use at least rounds=%d",
                *(setting.rounds, cycle, 2 * cycle),
            )

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Load the client's own model if it is good enough, and set w."""
        held_out, trained = own_validation(client, self._seed, self.validation)
        self.strength.zero_()
        if not client.is_personal:
            self._choose_model(client, message, memory, held_out)
        client.train_on(client.data.subset(trained))

    def _choose_model(
        self, client: Client, message: PartMessage, memory: Memory, held_out: Tensor
    ) -> None:
        """Load the client's own model if it is good on ``held_out``, set w, store the teacher."""
        own = with_prefix("model", memory)
        teacher = {name: client.weights[name].clone() for name in message.weights}
        if own and len(held_out):
            data = client.data.subset(held_out)
            own_score, teacher_score = (accuracy(client, data, each) for each in (own, teacher))
            is_good = (own_score > self.threshold) | memory["was_good"]
            client.load({name: torch.where(is_good, own[name], teacher[name]) for name in own})
            is_common = client.round <= self._common_rounds
            late = adapted_weight(self.lam, own_score, teacher_score, self.least)
            lam = self.lam if is_common else late
            self.strength.copy_(is_good * lam)
            memory["was_good"] = is_good
        if client.round > self._common_rounds:
            memory.update(prefixed("teacher", teacher))

    def trained_samples(self, num_samples: int) -> int:
        """The number of the client's samples without its validation samples."""
        return num_samples - validation_samples(num_samples, self.validation)

    def forward(self, batch: Forward, **references: Outputs) -> Tensor:
        """The loss, a scalar."""
        labels = F.cross_entropy(batch.logits, batch.targets, reduction="none")
        away = (batch.z - references["global"].z).square().mean(dim=1)
        return batch.mean(labels + self.strength * away)

    def upload(self, client: Client, weights: Tensors, memory: Memory) -> Tensors:
        """Store the trained model. In the last rounds send the teacher.

        So the teacher stays the same, unless the aggregator moves the weights by itself, as with
        momentum.
        """
        teacher = with_prefix("teacher", memory)
        never = torch.zeros((), dtype=torch.bool, device=client.device)
        was_good = memory.get("was_good", never)
        memory.clear()
        own = {name: value.clone() for name, value in weights.items()}
        memory.update(prefixed("model", own), was_good=was_good)
        return teacher or weights


@torch.no_grad()
def accuracy(client: Client, data: LocalData, weights: Tensors) -> Tensor:
    """A model's accuracy on ``data``, a scalar; weights that are left out are the client's."""
    correct = [
        client.logits_with(weights, inputs).argmax(dim=1) == targets
        for inputs, targets in data.batches(_CHUNK)
    ]
    return torch.cat(correct).float().mean()
