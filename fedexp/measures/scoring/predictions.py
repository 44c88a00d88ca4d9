"""The predictions of one model on the test split or on other samples."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.sockets import Head
from fedexp.data.federated import ClientData


@dataclass(frozen=True)
class Selection:
    """The samples of the test split on which one personal model is scored.

    Attributes:
        index: [m] positions of the m samples in the test split, all different.
        averaged: number of samples at the start of ``index`` over which the loss and the class
            vectors are averaged. If it is 0, the loss is NaN and there are no class vectors.
    """

    index: Tensor
    averaged: int


Select = Callable[[ClientData], Selection | None]
"""Client -> the test samples for its personal model; None: the whole test split."""


@dataclass(frozen=True)
class Predictions:
    """One model's predictions on n samples; every accuracy and angle is computed from them.

    Attributes:
        correct: [n] bool: whether each sample was classified correctly; False for samples that were
            not scored, and for samples for which no class is ``predicted``.
        loss: mean cross-entropy.
        class_vectors: name -> [C, d] on the CPU, one vector for each class. ``feature`` is the mean
            feature vector z of each class, zero for a class without samples. ``head_feature`` is
            the mean of the normalised z, if the head normalises. ``classifier`` has the head's
            prototypes, if the head has prototypes.
        validation: for a personal model, bool for each validation sample of its client: whether
            the sample was classified correctly.
        head_correct: [n] bool: like ``correct``, but the class is predicted from the head's logits
            before personalization. None if these logits are not scored.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    head_correct: Tensor | None = None

    def metrics(self, names: str) -> dict[str, float]:
        """Accuracy and loss; ``names`` is a pattern for their names, such as ``global/{}``."""
        accuracy = self.correct.double().mean().item()
        return {names.format("accuracy"): accuracy, names.format("loss"): self.loss}

    def within(self, size: int, index: Tensor) -> "Predictions":
        """The same predictions, placed among ``size`` samples.

        Prediction i moves to position ``index[i]``. Predictions beyond the length of ``index``
        belong to padding and are dropped. All other positions count as not scored.
        """
        places = index.cpu()

        def spread(flags: Tensor) -> Tensor:
            return torch.zeros(size, dtype=torch.bool).index_copy(0, places, flags[: len(places)])

        of_head = None if self.head_correct is None else spread(self.head_correct)
        return replace(self, correct=spread(self.correct), head_correct=of_head)


def score(
    z: Tensor,
    logits: Tensor,
    labels: Tensor,
    head: Head,
    score_head: bool = False,
    averaged: int | None = None,
) -> Predictions:
    """The predictions of one model on n samples.

    Args:
        z: [n, d] features.
        logits: [n, C] logits, after personalization if the model is personal.
        labels: [n] class of each sample.
        head: the model's head.
        score_head: whether the head's logits before personalization are scored, too.
        averaged: see ``Selection``; by default n.
    """
    of_head = {n: each[None] for n, each in outputs_of_head(head, z, score_head).items()}
    real = None if averaged is None else (torch.arange(len(z), device=z.device) < averaged)[None]
    (found,) = score_rows(z[None], logits[None], of_head, labels, real)
    return found


def score_rows(
    z: Tensor,
    logits: Tensor,
    of_head: Mapping[str, Tensor],
    labels: Tensor,
    real: Tensor | None = None,
) -> list[Predictions]:
    """The predictions of K models, computed at once; ``score`` does the same for one model.

    Args:
        z: [K, n, d] features.
        logits: [K, n, C] logits.
        of_head: the models' ``outputs_of_head``, stacked along a new first dimension K.
        labels: [n] classes, or [K, n] if the models are scored on different samples.
        real: [K, n] 1 for samples that enter the loss and the class vectors, else 0; None: all
            enter. A model without such a sample has the loss NaN. If no model has one, there are
            no class vectors.
    """
    rows, vectors = len(z), {}
    losses = [math.nan] * rows
    if real is None or real.any():
        members = F.one_hot(labels.long(), logits.shape[-1]).to(z.dtype)
        if real is not None:
            members = members * real.unsqueeze(-1)
        counts = members.sum(dim=-2).clamp(min=1).unsqueeze(-1)
        features = {"feature": z}
        if "head_feature" in of_head:
            features["head_feature"] = of_head["head_feature"]
        vectors = {n: (members.mT @ each / counts).cpu() for n, each in features.items()}
        if "classifier" in of_head:
            vectors["classifier"] = of_head["classifier"].cpu()
        each_loss = F.cross_entropy(
            logits.mT, labels.expand(logits.shape[:2]).long(), reduction="none"
        )
        weights = torch.ones_like(each_loss) if real is None else real.to(each_loss)
        losses = ((each_loss * weights).sum(dim=1) / weights.sum(dim=1)).tolist()
    correct = (predicted(logits) == labels).cpu()
    of_heads: Sequence[Tensor | None] = [None] * rows
    if "logits" in of_head:
        of_heads = list((predicted(of_head["logits"]) == labels).cpu())
    return [
        Predictions(
            correct=correct[row],
            loss=losses[row],
            class_vectors={name: each[row] for name, each in vectors.items()},
            head_correct=of_heads[row],
        )
        for row in range(rows)
    ]


def predicted(logits: Tensor) -> Tensor:
    """The class with the largest of the ``logits`` [..., C]; -1, no class, if there is none.

    There is none if a logit is NaN, as of a model that diverged, or if all are -inf, as without
    any prototype. PyTorch's ``argmax`` would take the first NaN, or class 0, and be right about
    each client that has only this class.
    """
    return logits.argmax(dim=-1).masked_fill(~(logits.amax(dim=-1) > -torch.inf), -1)


def outputs_of_head(head: Head, z: Tensor, score_head: bool) -> dict[str, Tensor]:
    """The head's tensors that ``score_rows`` needs besides the features z [n, d]: name -> tensor.

    ``head_feature`` [n, d] is the normalised z, if the head normalises. ``classifier`` [C, d] has
    the head's prototypes, if the head has prototypes. ``logits`` [n, C] are the head's logits
    before personalization, if ``score_head``.
    """
    found = {}
    if (normalized := head.normalize(z)) is not z:
        found["head_feature"] = normalized
    if (classifier := head.prototypes()) is not None:
        found["classifier"] = classifier.clone()  # a copy, because the module's weights change
    if score_head:
        found["logits"] = head(z)
    return found
