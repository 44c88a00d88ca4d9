"""One model's predictions on the test split, or on other samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.core.prototypes import class_prototypes
from fedexp.core.sockets import Head


@dataclass(frozen=True)
class Predictions:
    """One model on n samples: every accuracy and angle is computed from this.

    Attributes:
        correct: [n] bool: whether each sample was classified correctly.
        loss: mean cross-entropy.
        class_vectors: [C, d] tensors on the CPU: ``feature``, the mean z of each class (zero for a
            class without samples); ``head_feature``, the mean normalised z, if the head normalises;
            ``classifier``, the head's vectors, if it has any.
        validation: of a personal model, [m_k] bool: whether each sample that its client holds out
            for validation was classified correctly.
        head_correct: [n] bool: as ``correct``, of the head's own logits; None if they are not
            scored apart.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    head_correct: Tensor | None = None


def score(
    z: Tensor, logits: Tensor, labels: Tensor, head: Head, score_head: bool = False
) -> Predictions:
    """Predictions of a model with this head from its z [n, d], logits [n, C] and ``labels`` [n].

    ``score_head``: whether the head's own logits of z are scored, too.
    """
    features = {"feature": z}
    if (normalized := head.normalize(z)) is not z:
        features["head_feature"] = normalized
    class_vectors = {
        name: class_prototypes(each, labels, logits.shape[1])[0].cpu()
        for name, each in features.items()
    }
    if (classifier := head.prototypes()) is not None:
        class_vectors["classifier"] = classifier.cpu()
    return Predictions(
        correct=(logits.argmax(dim=1) == labels).cpu(),
        loss=F.cross_entropy(logits, labels).item(),
        class_vectors=class_vectors,
        head_correct=(head(z).argmax(dim=1) == labels).cpu() if score_head else None,
    )
