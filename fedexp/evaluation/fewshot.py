"""Few-shot evaluation: how well the global model's features tell classes apart that nobody holds.

An episode draws some unseen classes and, of each, a few labelled samples, the support, and others
to classify, the queries. A query gets the class whose support mean is nearest to its z, by
Euclidean distance (Snell et al., NeurIPS 2017). The head takes no part.
"""

import math

import numpy as np
import torch
from torch import Tensor

from fedexp.config.schema import Episodes
from fedexp.core.messages import Message
from fedexp.core.randomness import numpy_generator
from fedexp.engines.resources import Resources
from fedexp.errors import InputError

_CHUNK = 50
"""Episodes whose features are gathered at a time: bounds the memory."""


class FewShot:
    """Scores the global model on episodes of the unseen classes of the test split.

    The episodes are drawn once, keyed by the seed of the run alone: every round and every method
    is scored on the same ones.

    Args:
        settings: size and number of the episodes.
        resources: the federation's.

    Raises:
        InputError: a class has too few samples for an episode.
    """

    def __init__(self, settings: Episodes, resources: Resources) -> None:
        self.resources = resources
        data, unseen = resources.data, resources.data.description.test_labels
        labels = data.test.labels.cpu().numpy() - unseen.start
        generator = numpy_generator(data.seed, "fewshot")
        drawn = draw_episodes(labels, len(unseen), settings, generator)
        device = data.test.labels.device
        self.support, self.query = (torch.from_numpy(index).to(device) for index in drawn)

    def __call__(self, message: Message) -> dict[str, float]:
        """``global/fewshot_*`` of the global model in ``message``; empty if there is none."""
        if not self.resources.personalization.has_global:
            return {}
        return fewshot_metrics(
            episode_accuracies(self._features(message), self.support, self.query)
        )

    @torch.inference_mode()
    def _features(self, message: Message) -> Tensor:
        """z [n, d] of the test split, in eval mode."""
        module = self.resources.load_global(message).eval()
        found = []
        for inputs, _ in self.resources.data.test.batches(self.resources.eval_batch_size):
            with self.resources.fabric.autocast():
                found.append(module.outputs(inputs).z)
        return torch.cat(found).float()


def draw_episodes(
    labels: np.ndarray, num_classes: int, settings: Episodes, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Episodes: positions of the support [E, W, S] and of the queries [E, W, Q].

    The W classes of an episode are distinct, and so are its samples; all are uniform.

    Args:
        labels: [n] class of each sample, 0 to U-1.
        num_classes: U, at least W.
        settings: W ways, S shots, Q queries of each class, E episodes.
        generator: decides all of it.

    Raises:
        InputError: a class has fewer than S + Q samples.
    """
    sizes = np.bincount(labels, minlength=num_classes)
    needed = settings.shots + settings.queries
    if needed > sizes.min():
        raise InputError(
            f"evaluation.fewshot.shots={settings.shots} and queries={settings.queries}: "
            f"an unseen class has {sizes.min()} samples in all"
        )
    classes = generator.random((settings.episodes, num_classes)).argsort(axis=1)[:, : settings.ways]
    keys = generator.random((*classes.shape, sizes.max()))
    keys[np.arange(sizes.max()) >= sizes[classes][..., None]] = np.inf  # beyond the class
    places = keys.argsort(axis=2)[..., :needed]
    by_class = np.argsort(labels, kind="stable")
    starts = np.cumsum(sizes) - sizes
    drawn = by_class[starts[classes][..., None] + places]
    return drawn[..., : settings.shots], drawn[..., settings.shots :]


def episode_accuracies(z: Tensor, support: Tensor, query: Tensor) -> Tensor:
    """Share of each episode's queries that are nearest to the support mean of their own class.

    Args:
        z: [n, d] features.
        support: [E, W, S] positions in ``z``.
        query: [E, W, Q] likewise.

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
        # By differences: the expanded square loses digits where features are large and alike.
        distances = torch.cdist(
            z[asked].flatten(1, 2), means, compute_mode="donot_use_mm_for_euclid_dist"
        )
        right.append((distances.argmin(dim=2) == own_class).sum(dim=1))
    return torch.cat(right).cpu().double() / (ways * queries)


def fewshot_metrics(accuracies: Tensor) -> dict[str, float]:
    """The mean over episodes, and half the width of its 95 % interval (1.96 standard errors).

    Args:
        accuracies: [E], at least two.
    """
    interval = 1.96 * accuracies.std().item() / math.sqrt(len(accuracies))
    return {
        "global/fewshot_accuracy": accuracies.mean().item(),
        "global/fewshot_interval": interval,
    }
