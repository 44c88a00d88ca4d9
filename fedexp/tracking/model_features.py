"""Features of the test split under the global model and clients' personal models."""

import logging

import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedexp.config.schema import Tracking
from fedexp.core.client import ClientModule
from fedexp.core.messages import Message
from fedexp.core.randomness import torch_generator
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources
from fedexp.tracking.feature_map import ModelFeatures, feature_map
from fedexp.tracking.named_classes import class_numbers

LOGGER = logging.getLogger(__name__)

_MAPPED_SAMPLES = 1000
"""Test samples in a feature map: t-SNE takes long with many more."""


def draw_features(
    settings: Tracking, resources: Resources, ranks: Ranks, message: Message
) -> dict[str, Figure]:
    """The figure of the models that the settings ask for; empty if there is none of them.

    All ranks must call this; the first one draws.
    """
    if not (settings.feature_global or settings.feature_clients):
        return {}
    data = resources.data
    shown = class_numbers(settings.feature_classes, data.description)
    index = _samples(resources, shown)
    if not len(index):
        LOGGER.warning("tracking.feature_classes: no test sample is of these, nothing to draw")
        return {}
    chosen = set(settings.feature_clients) & set(resources.store.clients_with_model)
    own = ((client, _of_client(resources, client, index)) for client in chosen)
    found = dict(ranks.gather_pairs(own))
    if settings.feature_clients and not found:
        LOGGER.warning("tracking.feature_clients: none of them has trained, nothing to draw")
    models = list(found.values())
    if settings.feature_global:
        module = resources.load_global(message)
        models.insert(0, _features("global model", module, resources, index))
    if not (models and ranks.is_first):
        return {}
    counts = {f"client {client}": data.clients[client].class_counts for client in found}
    labels, classes = data.test.labels[index], data.description.classes
    figure = feature_map(models, labels, classes, settings.projection, shown, counts)
    return {"features/clients" if found else "features/global": figure}


def _samples(resources: Resources, shown: list[int]) -> Tensor:
    """[n] positions in the test split of random samples of these classes."""
    test = resources.data.test
    shuffled = torch.randperm(len(test), generator=torch_generator(resources.data.seed, "features"))
    shuffled = shuffled.to(test.labels.device)
    members = torch.isin(test.labels[shuffled], torch.tensor(shown, device=shuffled.device))
    return shuffled[members][:_MAPPED_SAMPLES]


def _of_client(resources: Resources, client: int, index: Tensor) -> ModelFeatures:
    resources.module.load(resources.store.model(client))
    return _features(f"client {client}", resources.module, resources, index)


@torch.inference_mode()
def _features(
    title: str, module: ClientModule, resources: Resources, index: Tensor
) -> ModelFeatures:
    module.eval()
    batches = resources.data.test.batches(resources.eval_batch_size, index)
    z = torch.cat([module.backbone(inputs) for inputs, _ in batches])
    prototypes = module.head.prototypes()
    return ModelFeatures(title, z, None if prototypes is None else prototypes.clone())
