"""Few-shot evaluation: how well the global model's features separate classes that no client has.

The evaluation consists of episodes. For an episode, some of these unseen classes are drawn, and
from each class a few labelled samples (the support) and other samples to classify (the queries). A
query gets the class whose support has the nearest mean feature z, by Euclidean distance (Snell et
al., NeurIPS 2017). The head is not used.
"""

import math
from types import MappingProxyType
from typing import Annotated

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import Need
from fedexp.core.part import Setting
from fedexp.core.randomness import numpy_generator
from fedexp.engines.resources import Resources
from fedexp.errors import InputError
from fedexp.measures.measure import AfterRound, Measure, Measured, Outline

_CHUNK = 50
"""Number of episodes whose features are gathered at once; limits the memory."""


class FewShot(Measure):
    """``global/fewshot_accuracy`` on episodes of the unseen classes of the test split.

    The episodes depend only on the run's seed: all rounds and all methods are scored on the same
    episodes. Nothing is measured if clients train on all test classes.

    Args:
        every: rounds between measurements; the last round is always measured.
        ways: classes in an episode.
        shots: labelled samples of each class.
        queries: samples of each class that are classified.
        episodes: number of episodes.
    """

    def __init__(
        self,
        every: PositiveInt,
        ways: Annotated[int, Field(ge=2)],
        shots: PositiveInt,
        queries: PositiveInt,
        episodes: Annotated[int, Field(ge=2, le=10_000)],
    ) -> None:
        self.every, self.ways, self.shots, self.queries = every, ways, shots, queries
        self.episodes = episodes
        self._drawn: tuple[Tensor, Tensor] | None = None

    def check(self, outline: Outline) -> None:
        """Set the headline if the test split has unseen classes and the run has a global model.

        Raises:
            InputError: such a run has fewer unseen classes than ``ways``.
        """
        about = outline.about
        if not about.unseen_classes or Need.GLOBAL_MODEL not in outline.given:
            self.idle = "without test classes that no client has, and a global model"
            return
        self.headlines = MappingProxyType({"global/fewshot_accuracy": "higher"})
        self.reads = frozenset({"measure.global.every"})
        if self.ways > len(about.unseen_classes):
            raise InputError(
                f"measure.fewshot.ways={self.ways}: {about.name} has "
                f"{len(about.unseen_classes)} unseen classes"
            )

    def setup(self, setting: Setting, resources: Resources) -> None:
        """Draw the episodes. Raises InputError if a class has too few samples."""
        data, unseen = resources.data, resources.data.description.test_labels
        if not data.description.unseen_classes:
            return
        labels = data.test.labels.cpu().numpy() - unseen.start
        generator = numpy_generator(data.seed, "fewshot")
        support, query = draw_episodes(labels, len(unseen), self, generator)
        device = data.test.labels.device
        self._drawn = torch.from_numpy(support).to(device), torch.from_numpy(query).to(device)

    def __call__(self, after: AfterRound) -> Measured:
        """The metrics ``global/fewshot_*``; nothing without unseen classes and a global model."""
        has_global = after.resources.personalization.has_global
        if self._drawn is None or not has_global or not after.ranks.is_first:
            return Measured()
        accuracies = episode_accuracies(_features(after), *self._drawn)
        return Measured(fewshot_metrics(accuracies))


@torch.inference_mode()
def _features(after: AfterRound) -> Tensor:
    """The features z [n, d] of the n test samples, d numbers each, under the global model."""
    module, found = after.global_model(), []
    for inputs, _ in after.data.test.batches(after.resources.eval_batch_size):
        with after.resources.fabric.autocast():
            found.append(module.outputs(inputs).z)
    return torch.cat(found).float()


def draw_episodes(
    labels: np.ndarray, num_classes: int, settings: FewShot, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw E episodes: the positions of the support [E, W, S] and of the queries [E, W, Q].

    All draws are uniform, and no class or sample occurs twice in an episode.

    Args:
        labels: [n] class of each sample, from 0 to U-1.
        num_classes: U, the number of unseen classes; at least W.
        settings: the measure. Its arguments are the sizes E (``episodes``), W (``ways``: classes in
            an episode), S (``shots``) and Q (``queries``): support and query samples of a class.
        generator: source of the random draws.

    Raises:
        InputError: a class has fewer than S + Q samples.
    """
    sizes = np.bincount(labels, minlength=num_classes)
    needed = settings.shots + settings.queries
    if needed > sizes.min():
        raise InputError(
            f"measure.fewshot.shots={settings.shots} and queries={settings.queries}: "
            f"an unseen class has {sizes.min()} samples in all"
        )
    classes = generator.random((settings.episodes, num_classes)).argsort(axis=1)[:, : settings.ways]
    keys = generator.random((*classes.shape, sizes.max()))
    keys[np.arange(sizes.max()) >= sizes[classes][..., None]] = np.inf  # no such sample
    places = keys.argsort(axis=2)[..., :needed]
    by_class = np.argsort(labels, kind="stable")
    starts = np.cumsum(sizes) - sizes
    drawn = by_class[starts[classes][..., None] + places]
    return drawn[..., : settings.shots], drawn[..., settings.shots :]


def episode_accuracies(z: Tensor, support: Tensor, query: Tensor) -> Tensor:
    """The accuracy of each episode: the share of queries that get the right class.

    A query gets the class with the nearest mean of support features. It gets no class if a distance
    is NaN or all are infinite: a model that diverged would be right about each first class.

    Args:
        z: [n, d] features of all samples.
        support: [E, W, S] positions in ``z`` of S samples of W classes in E episodes.
        query: [E, W, Q] positions in ``z`` of Q samples of the same classes and episodes.

    Returns:
        [E] float64 on the CPU.
    """
    ways, queries = query.shape[1:]
    own_class = torch.arange(ways, device=z.device).repeat_interleave(queries)
    right = []
    for supports, asked in zip(
        torch.split(support, _CHUNK), torch.split(query, _CHUNK), strict=True
    ):
        means = z[supports].mean(dim=2)
        # Without matrix products, which lose digits if features are large and similar.
        distances = torch.cdist(
            z[asked].flatten(1, 2), means, compute_mode="donot_use_mm_for_euclid_dist"
        )
        least, nearest = distances.min(dim=2)  # NaN if one of the distances is NaN
        right.append(((nearest == own_class) & least.isfinite()).sum(dim=1))
    return torch.cat(right).cpu().double() / (ways * queries)


def fewshot_metrics(accuracies: Tensor) -> dict[str, float]:
    """``global/fewshot_accuracy``, the mean over episodes, and ``global/fewshot_interval``.

    The interval is half the width of the mean's 95 % confidence interval: 1.96 standard errors.

    Args:
        accuracies: [E] accuracy of each episode; E is at least two.
    """
    interval = 1.96 * accuracies.std().item() / math.sqrt(len(accuracies))
    return {
        "global/fewshot_accuracy": accuracies.mean().item(),
        "global/fewshot_interval": interval,
    }
