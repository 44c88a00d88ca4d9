"""One model's predictions on the test split, or on other samples."""

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
    """Samples of the test split, on which a personal model is scored.

    Attributes:
        index: [m] positions of the samples, all different.
        averaged: the loss and the class vectors are means over the first ``averaged`` samples; with
            0 there are no loss and no class vectors.
    """

    index: Tensor
    averaged: int


Select = Callable[[ClientData], Selection | None]
"""Client -> the test samples for its personal model; None: the whole test split."""


@dataclass(frozen=True)
class Predictions:
    """One model's predictions on n samples; every accuracy and angle is computed from them.

    Attributes:
        correct: [n] bool: whether each sample was classified correctly; False if it was not scored.
        loss: mean cross-entropy.
        class_vectors: [C, d] tensors on the CPU: ``feature``, the mean z of each class (zero for a
            class without samples); ``head_feature``, the mean normalised z, if the head normalises;
            ``classifier``, the head's vectors, if it has any.
        validation: [m_k] bool, for a personal model: whether each validation sample of its client
            was classified correctly.
        head_correct: [n] bool: like ``correct``, for the head's own logits; None if they are not
            scored separately.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    head_correct: Tensor | None = None

    def metrics(self, names: str) -> dict[str, float]:
        """Accuracy and loss; with ``names`` = ``global/{}`` one key is ``global/accuracy``."""
        accuracy = self.correct.double().mean().item()
        return {names.format("accuracy"): accuracy, names.format("loss"): self.loss}

    def within(self, size: int, index: Tensor) -> "Predictions":
        """Predictions of ``size`` samples: prediction i moves to position ``index[i]``.

        Padding is dropped.
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
    """Predictions of a model with this head from its z [n, d], logits [n, C] and ``labels`` [n].

    If ``score_head``, the head's own logits of z are scored, too. ``Selection`` explains
    ``averaged``; by default it is n.
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
    """``score`` of K models at once.

    Args:
        z: [K, n, d].
        logits: [K, n, C].
        of_head: the models' ``outputs_of_head``, stacked.
        labels: [n], or [K, n] if the models are scored on different samples.
        real: [K, n] 1 for samples that count in the loss and the class vectors, 0 for others; None:
            all count. If none counts, the loss is NaN and there are no class vectors.
    """
    rows, vectors = len(z), {}
    losses = [math.nan] * rows
    if real is None or real.any():
        members = F.one_hot(labels.long(), logits.shape[-1]).to(z.dtype)
        if real is not None:
            members = members * real.unsqueeze(-1)
        counts = members.sum(dim=-2).clamp(min=1).unsqueeze(-1)
        vectors = {
            name: (members.mT @ each / counts).cpu() for name, each in _features(z, of_head).items()
        }
        if "classifier" in of_head:
            vectors["classifier"] = of_head["classifier"].cpu()
        each_loss = F.cross_entropy(
            logits.mT, labels.expand(logits.shape[:2]).long(), reduction="none"
        )
        weights = torch.ones_like(each_loss) if real is None else real.to(each_loss)
        losses = ((each_loss * weights).sum(dim=1) / weights.sum(dim=1)).tolist()
    correct = (logits.argmax(dim=-1) == labels).cpu()
    of_heads: Sequence[Tensor | None] = [None] * rows
    if "logits" in of_head:
        of_heads = list((of_head["logits"].argmax(dim=-1) == labels).cpu())
    return [
        Predictions(
            correct=correct[row],
            loss=losses[row],
            class_vectors={name: each[row] for name, each in vectors.items()},
            head_correct=of_heads[row],
        )
        for row in range(rows)
    ]


def outputs_of_head(head: Head, z: Tensor, score_head: bool) -> dict[str, Tensor]:
    """The head's tensors that are scored in addition to its features z [n, d].

    ``head_feature`` [n, d]: the normalised z, if the head normalises. ``classifier`` [C, d]: the
    head's class vectors, if it has any. ``logits`` [n, C]: its own logits, with ``score_head``.
    """
    found = {}
    if (normalized := head.normalize(z)) is not z:
        found["head_feature"] = normalized
    if (classifier := head.prototypes()) is not None:
        found["classifier"] = classifier.clone()  # not the module's own
    if score_head:
        found["logits"] = head(z)
    return found


def _features(z: Tensor, of_head: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The features whose class means are among ``Predictions.class_vectors``."""
    normalized = {name: of_head[name] for name in ("head_feature",) if name in of_head}
    return {"feature": z, **normalized}
