"""Which figures are drawn in which round."""

import logging

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedexp.config.schema import Tracking
from fedexp.core.messages import Message
from fedexp.core.randomness import torch_generator
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources
from fedexp.tracking.feature_map import feature_map
from fedexp.tracking.figures import partition_heatmap, similarity_heatmap

LOGGER = logging.getLogger(__name__)

_MAPPED_SAMPLES = 1000
"""Test samples in a feature map: t-SNE takes long with many more."""


class Pictures:
    """Draws the partition before training and prototype similarity every ``heatmap_every`` rounds.

    After the last round it draws prototype similarity, the parts' own figures, and the features of
    the clients in ``tracking.feature_clients``. Only the first rank draws; its parts see the
    memories of that rank's clients.
    """

    def __init__(self, settings: Tracking, rounds: int, resources: Resources, ranks: Ranks) -> None:
        self.settings, self.rounds, self.resources = settings, rounds, resources
        self.ranks = ranks

    def __call__(self, message: Message) -> dict[str, Figure]:
        """Name -> figure for the global model in ``message``; empty if none is due."""
        about, is_last = self.resources.data.description, message.round == self.rounds
        if message.round == 0:
            figure = partition_heatmap(self.resources.data.class_counts, about.classes)
            return {"heatmap/partition": figure}
        figures = {}
        due = is_last or message.round % self.settings.heatmap_every == 0
        if due and self.ranks.is_first and self.resources.personalization.has_global:
            prototypes = self.resources.load_global(message).head.prototypes()
            if prototypes is not None:
                figures["heatmap/prototype_similarity"] = similarity_heatmap(
                    prototypes, about.classes, about.superclasses
                )
        if self.ranks.is_first and is_last:
            figures |= self._part_figures()
        if is_last and self.settings.feature_clients:
            figures |= self._feature_map()
        return figures

    def _part_figures(self) -> dict[str, Figure]:
        """The parts' own figures of the whole run."""
        resources = self.resources
        figures: dict[str, Figure] = {}
        for name, part in resources.parts.items():
            memories = resources.store.memories(name)
            figures |= part.figures(memories, resources.data.description)
        return figures

    def _feature_map(self) -> dict[str, Figure]:
        """Test features under the chosen clients' personal models."""
        data = self.resources.data
        shuffled = torch.randperm(len(data.test), generator=torch_generator(data.seed, "features"))
        index = shuffled[:_MAPPED_SAMPLES].to(data.test.labels.device)
        chosen = set(self.settings.feature_clients) & set(self.resources.store.clients_with_model)
        own = ((client, self._features(client, index)) for client in chosen)
        models = {f"client {client}": z for client, z in self.ranks.gather_pairs(own)}
        if not models:
            LOGGER.warning("tracking.feature_clients: none of them has trained, nothing to draw")
            return {}
        labels, classes = data.test.labels[index], data.description.classes
        drawn = feature_map(models, labels, classes, self.settings.projection)
        return {"features/clients": drawn}

    @torch.inference_mode()
    def _features(self, client: int, index: Tensor) -> Tensor:
        module = self.resources.module.eval()
        module.load(self.resources.store.model(client))
        batches = self.resources.data.test.batches(self.resources.eval_batch_size, index)
        return torch.cat([module.backbone(inputs) for inputs, _ in batches])
