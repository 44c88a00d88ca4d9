"""The test samples on which personal models are scored."""

from collections.abc import Collection, Sequence

import numpy as np
import torch
from torch import Tensor

from fedexp.core.randomness import numpy_generator
from fedexp.data.federated import ClientData, FederatedData
from fedexp.data.split import apportion, deal
from fedexp.errors import InputError
from fedexp.measures.scoring.predictions import Selection

NEED_ALL = ("whole", "angles")
"""Kinds of metrics that need samples of all classes, even of classes that the client lacks."""

_NEED_HELD = ("uniform", "local")


class ScoredSamples:
    """Chooses the test samples on which each client's personal model is scored.

    A model is scored only on samples that the metrics need: the samples of the client's classes,
    the client's own test split, or all samples.

    Args:
        data: the population's data.
        metrics: kinds of metrics, ``measure.personal.kinds``.
        size: number of samples in a random subset of the test split, such as
            ``measure.personal.samples``, on which all models are scored; None: the whole test
            split.
        own: whether a model is scored on its client's own test split only, because other clients'
            samples are another task for it; see ``Outline.own_tasks``. Then ``metrics`` has no kind
            of ``NEED_ALL``.
        key: the key of the config that has ``size``, for the error line.

    Attributes:
        metrics, size, own: the arguments of the same names.
        labels: [n] class of each sample in the test split.
        totals: [C] number of samples of each class in the test split.
        is_estimate: whether only a subset of the test split is scored.
        share: [s] sorted positions of the s samples in this subset; without ``size``, of all
            samples. The subset is stratified and has at least two samples of each class, or
            the only one. It is the same for all methods with the same seed.

    Raises:
        InputError: ``size`` is too small or too large.
    """

    def __init__(
        self,
        data: FederatedData,
        metrics: Collection[str],
        size: int | None,
        own: bool = False,
        key: str = "measure.personal.samples",
    ) -> None:
        self.metrics, self.size, self.own = tuple(metrics), size, own
        self.labels = data.test.labels.cpu()
        self.totals = torch.bincount(self.labels, minlength=data.description.num_classes)
        self.is_estimate = size is not None
        self.share = torch.arange(len(self.labels))
        if size is not None:
            self.share = torch.from_numpy(_draw(self.labels.numpy(), size, data.seed, key))

    def __call__(self, client: ClientData) -> Selection | None:
        """The test samples for this client's model; None: the whole test split."""
        if self.own:
            return Selection(client.test_index, averaged=0)
        needs_all = not set(NEED_ALL).isdisjoint(self.metrics)
        if needs_all and not self.is_estimate:
            return None
        chosen = torch.zeros(len(self.labels), dtype=torch.bool)
        if needs_all:
            chosen[self.share] = True
        elif not set(_NEED_HELD).isdisjoint(self.metrics):
            chosen[self.share] = (client.class_counts.cpu() > 0)[self.labels[self.share]]
        index = chosen.nonzero().squeeze(1)
        averaged = len(index) if "angles" in self.metrics else 0
        if "test_split" in self.metrics:
            own = client.test_index.cpu()
            index = torch.cat([index, own[~chosen[own]]])
        return Selection(index.to(client.test_index.device), averaged)

    def hits(self, correct: Tensor, clients: Sequence[ClientData]) -> tuple[Tensor, Tensor]:
        """For each class, the numbers of correctly classified test samples and of all test samples.

        If only a subset of the test split was scored, the first number is an estimate. With
        ``own``, the first number is the recall on the client's own test split times the second
        number, and the second number is 0 for classes without a sample in that split.

        Args:
            correct: [K, n] bool: whether each model classified each test sample correctly.
            clients: the clients of the K models.

        Returns:
            Hits [K, C], the numbers of correctly classified samples; and totals, [C] or with
            ``own`` [K, C], the numbers of all samples. Both are float64; hits / totals is the
            recall of a class.
        """
        if self.own:
            scored = torch.zeros_like(correct)
            for row, each in zip(scored, clients, strict=True):
                row[each.test_index.cpu()] = True
            own = self._by_class(scored, self.labels)
            recalls = self._by_class(correct & scored, self.labels) / own.clamp(min=1)
            return recalls * self.totals, self.totals * (own > 0).double()
        labels = self.labels[self.share]
        drawn = torch.bincount(labels, minlength=len(self.totals))
        counted = self._by_class(correct[:, self.share], labels)
        return counted * (self.totals.double() / drawn.clamp(min=1)), self.totals.double()

    def _by_class(self, flags: Tensor, labels: Tensor) -> Tensor:
        """For each of K models, the number of true ``flags`` [K, m] of each class, [K, C]."""
        counts = torch.zeros(len(flags), len(self.totals), dtype=torch.float64)
        return counts.index_add_(1, labels, flags.double())


def _draw(labels: np.ndarray, size: int, seed: int, key: str) -> np.ndarray:
    """Sorted positions of a stratified sample of ``size`` elements of ``labels`` [n].

    The error line names the ``key`` of the config.
    """
    sizes = np.bincount(labels)
    least = np.minimum(2, sizes)  # a variance needs two samples
    if not least.sum() <= size <= len(labels):
        raise InputError(
            f"{key}={size}: should be between {least.sum()} (two of each class) and "
            f"{len(labels)} (the whole test split), or null for all of it"
        )
    generator = numpy_generator(seed, "personal_samples")
    counts = apportion(size, sizes, generator)
    while (lacking := np.flatnonzero(counts < least)).size:
        counts[lacking[0]] += 1
        counts[(counts - least).argmax()] -= 1
    return deal(labels, counts[None, :], generator)[0]
