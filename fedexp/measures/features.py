"""A picture of the test samples' features z under the global model and personal models."""

import logging
from collections.abc import Iterator, Sequence
from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from fedexp.config.compatibility.traits import Need
from fedexp.core.client import ClientModule
from fedexp.core.randomness import torch_generator
from fedexp.drawing.feature_map import ModelFeatures, feature_map
from fedexp.errors import InputError
from fedexp.measures.measure import AfterRound, Measure, Measured, Outline
from fedexp.measures.named_classes import class_numbers
from fedexp.measures.scoring.predictions import Selection

LOGGER = logging.getLogger(__name__)

_MAPPED_SAMPLES = 1000
"""Largest number of test samples in the picture; with many more, t-SNE takes long."""


class Features(Measure):
    """Draws the features of test samples as points in a plane, with one panel for each model.

    The figure is drawn after the last round. Its name is ``features/clients`` if clients are shown,
    else ``features/global``. Personal models are those that ``personal/*`` scores: tuned ones, if
    the method tunes.

    Args:
        global_model: whether the global model is shown.
        clients: the clients whose personal models are shown.
        classes: numbers or names of the classes that are shown; empty for all classes.
        projection: the method that projects features to the plane.
    """

    needs = frozenset({Need.CLASS_LABELS, Need.TEST_CLASSES})

    def __init__(
        self,
        global_model: bool,
        clients: list[NonNegativeInt],
        classes: list[NonNegativeInt | str],
        projection: Literal["pca", "tsne"],
    ) -> None:
        self.global_model, self.clients = global_model, clients
        self.classes, self.projection = classes, projection
        if global_model:
            self.needs |= {Need.GLOBAL_MODEL}
        if clients:
            self.remembers = "all"
            self.needs |= {Need.SIMULATION}

    def check(self, outline: Outline) -> None:
        """Raise InputError for an unknown class or client."""
        class_numbers(self.classes, outline.about)
        clients = outline.clients
        if any(client >= clients for client in self.clients):
            raise InputError(
                f"measure.features.clients={self.clients}: must be below clients.count={clients}"
            )

    def due(self, round: int, rounds: int) -> bool:
        """True after the last round."""
        return round == rounds

    def __call__(self, after: AfterRound) -> Measured:
        """The figure; nothing if there is no model with finite features, or no sample, to show."""
        shown = class_numbers(self.classes, after.data.description)
        index = _samples(after, shown)
        if not len(index):
            LOGGER.warning("measure.features.classes: no test samples of these; nothing to draw")
            return Measured()
        trained = dict(after.ranks.gather_pairs(_of_clients(after, self.clients, index)))
        if self.clients and not trained:
            LOGGER.warning(
                "measure.features.clients: no such client has trained; no panel for them"
            )
        found = {client: each for client, each in trained.items() if _is_finite(each)}
        models = list(found.values())
        if self.global_model:
            of_global = _features("global model", after.global_model(), after, index)
            if _is_finite(of_global):
                models.insert(0, of_global)
        if not (models and after.ranks.is_first):
            return Measured()
        data = after.data
        counts = {f"client {client}": data.clients[client].class_counts for client in found}
        labels, classes = data.test.labels[index], data.description.classes
        figure = feature_map(models, labels, classes, self.projection, shown, counts)
        return Measured(figures={"features/clients" if found else "features/global": figure})


def _samples(after: AfterRound, shown: list[int]) -> Tensor:
    """The positions [n] in the test split of random samples of the classes ``shown``."""
    test = after.data.test
    shuffled = torch.randperm(len(test), generator=torch_generator(after.seed, "features"))
    shuffled = shuffled.to(test.labels.device)
    members = torch.isin(test.labels[shuffled], torch.tensor(shown, device=shuffled.device))
    return shuffled[members][:_MAPPED_SAMPLES]


def _is_finite(model: ModelFeatures) -> bool:
    """Whether all features are finite; if not, warn that the model is left out."""
    is_finite = bool(model.z.isfinite().all())
    if not is_finite:
        LOGGER.warning("measure.features: %s: not finite, left out of the figure", model.title)
    return is_finite


def _of_clients(
    after: AfterRound, clients: Sequence[int], index: Tensor
) -> Iterator[tuple[int, ModelFeatures]]:
    """Yield (client, features) of the personal model of each of these clients that has one."""
    resources, scoring = after.resources, after.scoring
    shown = [client for client in resources.store.clients_with_model if client in clients]
    unscored = Selection(index[:0], averaged=0)
    for client, _ in scoring.score_personal(after.tuned_from, select=lambda _: unscored, of=shown):
        yield client, _features(f"client {client}", resources.module, after, index)


@torch.inference_mode()
def _features(title: str, module: ClientModule, after: AfterRound, index: Tensor) -> ModelFeatures:
    module.eval()
    batches = after.data.test.batches(after.resources.eval_batch_size, index)
    z = torch.cat([module.backbone(inputs) for inputs, _ in batches])
    prototypes = module.head.prototypes()
    return ModelFeatures(title, z, None if prototypes is None else prototypes.clone())
