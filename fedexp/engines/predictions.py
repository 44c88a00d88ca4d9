"""One model's predictions on the test split, or on other samples."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.prototypes import class_prototypes
from fedexp.core.sockets import Head
from fedexp.data.federated import ClientData


@dataclass(frozen=True)
class Selection:
    """Samples of the test split, on which a personal model is scored.

    Attributes:
        index: [m] their positions, each one once.
        averaged: how many of them, from the first, the loss and the class vectors are means over;
            with 0 there are none of these.
    """

    index: Tensor
    averaged: int


Select = Callable[[ClientData], Selection | None]
"""Which samples a client's personal model is scored on; None is the whole test split."""


@dataclass(frozen=True)
class Predictions:
    """One model on n samples: every accuracy and angle is computed from this.

    Attributes:
        correct: [n] bool: whether each sample was classified correctly; False if it was not scored.
        loss: mean cross-entropy.
        class_vectors: [C, d] tensors on the CPU: ``feature``, the mean z of each class (zero for a
            class without samples); ``head_feature``, the mean normalised z, if the head normalises;
            ``classifier``, the head's vectors, if it has any.
        validation: of a personal model, [m_k] bool: whether each sample that its client holds out
            for validation was classified correctly.
        head_correct: [n] bool: as ``correct``, of the head's own logits; None if they are not
            scored apart.
        scored: [n] bool: whether each sample was scored; None if all were.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    head_correct: Tensor | None = None
    scored: Tensor | None = None

    def within(self, size: int, index: Tensor) -> "Predictions":
        """These predictions of the samples at ``index`` [n] among ``size`` others."""
        places = index.cpu()
        scored = torch.zeros(size, dtype=torch.bool).index_fill(0, places, True)

        def spread(flags: Tensor) -> Tensor:
            return torch.zeros(size, dtype=torch.bool).index_copy(0, places, flags)

        of_head = None if self.head_correct is None else spread(self.head_correct)
        return replace(self, correct=spread(self.correct), head_correct=of_head, scored=scored)


def score(
    z: Tensor,
    logits: Tensor,
    labels: Tensor,
    head: Head,
    score_head: bool = False,
    averaged: int | None = None,
) -> Predictions:
    """Predictions of a model with this head from its z [n, d], logits [n, C] and ``labels`` [n].

    ``score_head``: whether the head's own logits of z are scored, too. ``averaged`` is that of
    ``Selection``; None is all.
    """
    averages: dict[str, Any] = {"loss": math.nan}
    if averaged is None or averaged:
        averages = {
            "loss": F.cross_entropy(logits[:averaged], labels[:averaged]).item(),
            "class_vectors": _class_vectors(z[:averaged], labels[:averaged], head, logits.shape[1]),
        }
    return Predictions(
        correct=(logits.argmax(dim=1) == labels).cpu(),
        head_correct=(head(z).argmax(dim=1) == labels).cpu() if score_head else None,
        **averages,
    )


def score_selected(
    z: Tensor,
    logits: Tensor,
    labels: Tensor,
    head: Head,
    score_head: bool,
    selection: Selection | None,
) -> Predictions:
    """``score`` of a personal model on the test split with these ``labels`` [n].

    ``z`` and ``logits`` are of the selected samples and, after them, possibly of others.
    """
    if selection is None:
        return score(z, logits, labels, head, score_head)
    index, scored = selection.index, slice(len(selection.index))
    found = score(z[scored], logits[scored], labels[index], head, score_head, selection.averaged)
    return found.within(len(labels), index)


def _class_vectors(z: Tensor, labels: Tensor, head: Head, num_classes: int) -> dict[str, Tensor]:
    """``Predictions.class_vectors``."""
    features = {"feature": z}
    if (normalized := head.normalize(z)) is not z:
        features["head_feature"] = normalized
    vectors = {
        name: class_prototypes(each, labels, num_classes)[0].cpu()
        for name, each in features.items()
    }
    if (classifier := head.prototypes()) is not None:
        vectors["classifier"] = classifier.cpu()
    return vectors
