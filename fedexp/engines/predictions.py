"""One model's predictions on the test split."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.nn.functional as F
from torch import Tensor

from fedexp.core.prototypes import class_prototypes


@dataclass(frozen=True)
class Predictions:
    """One model on the test split: every accuracy and distance is computed from this.

    Attributes:
        correct: [n] bool: whether each test sample was classified correctly.
        loss: mean cross-entropy.
        class_vectors: [C, d] tensors on the CPU: ``feature``, the mean feature of each class (zero
            if the split lacks the class), and ``classifier``, the head's vectors if it has any.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)


def score(z: Tensor, logits: Tensor, labels: Tensor, classifier: Tensor | None) -> Predictions:
    """Predictions from a model's features z [n, d] and logits [n, C], with ``labels`` [n]."""
    class_vectors = {"feature": class_prototypes(z, labels, logits.shape[1])[0].cpu()}
    if classifier is not None:
        class_vectors["classifier"] = classifier.cpu()
    return Predictions(
        correct=(logits.argmax(dim=1) == labels).cpu(),
        loss=F.cross_entropy(logits, labels).item(),
        class_vectors=class_vectors,
    )
