"""The test loss on a plane through a round's global model and two local models (FedSC, Fig. 1b)."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from fedexp.config.schema import LossSurface
from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.randomness import seed_layers, torch_generator
from fedexp.data.samples import Samples
from fedexp.distributed.ranks import Ranks
from fedexp.engines.resources import Resources
from fedexp.tracking.loss_surface_figure import MarkedModel, loss_surface_figure
from fedexp.tracking.parameter_plane import (
    ParameterPlane,
    filter_normalized,
    flatten,
    plane_through,
)

LOGGER = logging.getLogger(__name__)

_MARGIN = 0.35
"""Space around the models, in shares of the larger of their extents."""


class LossSurfaces:
    """Draws the surface after the rounds in ``settings.rounds``.

    The local models are what arrived in the round's updates, of the two clients with the lowest
    numbers. Parameters that are not shared are the initial ones. The statistics of BatchNorm are
    estimated anew at each point, on samples that clients train on; everything else that is not a
    parameter is the global model's.

    Args:
        settings: when, which plane, and how finely.
        resources: model and data.
        ranks: the processes; the points are spread over them.
    """

    def __init__(self, settings: LossSurface, resources: Resources, ranks: Ranks) -> None:
        self.settings, self.resources, self.ranks = settings, resources, ranks
        self._local: dict[int, Tensors] = {}

    def observe(self, update: Update) -> None:
        """Keep the weights of an accepted update, if its client is one of the first two."""
        if self.settings.rounds and self.settings.plane == "local":
            kept = sorted({*self._local, update.client})[:2]
            if update.client in kept:
                copy = {name: weight.clone() for name, weight in update.weights.items()}
                self._local[update.client] = copy
            self._local = {client: self._local[client] for client in kept}

    def __call__(self, message: Message) -> dict[str, Figure]:
        """The figure after this round; empty if none is due. All ranks must call this."""
        own, self._local = self._local, {}
        if message.round not in self.settings.rounds:
            return {}
        local = dict(list(self.ranks.gather_pairs(own.items()))[:2])
        if self.settings.plane == "local" and not local:
            LOGGER.warning("tracking.loss_surface: round %d has no local model", message.round)
            return {}
        module, seed = self.resources.load_global(message), self.resources.data.seed
        names = [name for name, _ in module.named_parameters() if name in message.weights]
        start = {name: message.weights[name] for name in names}
        draw = torch_generator(seed, "loss_surface", message.round)
        plane = plane_through(start, list(local.values()), draw)
        models = {"global model": (0.0, 0.0)}
        models |= {f"client {k}": plane.project(weights) for k, weights in local.items()}
        half = flatten(filter_normalized(start, draw)).norm().item()
        x, y = window(list(models.values()), self.settings.points, half)
        losses = self._losses(message.round, plane, [*_grid(x, y), *models.values()])
        cells, marked = np.split(losses, [len(x) * len(y)])
        marks = [MarkedModel(n, *p, v) for (n, p), v in zip(models.items(), marked, strict=True)]
        figure = loss_surface_figure(
            x, y, cells.reshape(len(y), len(x)), marks, plane.is_random, message.round
        )
        return {"loss_surface": figure}

    def _losses(
        self, round: int, plane: ParameterPlane, points: Sequence[tuple[float, float]]
    ) -> NDArray[np.float64]:
        """[n] the mean test loss at each point, computed by all ranks together."""
        data, device = self.resources.data, self.resources.module.device
        trained = torch.cat([client.train_index for client in data.clients])
        train = self._sample(data.train, trained)
        test = self._sample(data.test, torch.arange(len(data.test), device=device))
        own = range(self.ranks.rank, len(points), self.ranks.size)
        found = ((n, self._loss(round, plane.at(*points[n]), train, test)) for n in own)
        return np.array([loss for _, loss in self.ranks.gather_pairs(found)])

    @torch.no_grad()
    def _loss(self, round: int, weights: Tensors, train: list[Batch], test: list[Batch]) -> float:
        """The mean cross-entropy on ``test`` with these parameters."""
        module = self.resources.module.eval()
        module.load(weights)
        seed_layers(module.device, self.resources.data.seed, "loss_surface", round)  # dropout
        update_bn(train, nn.Sequential(module.backbone, module.head))
        module.eval()
        losses = []
        for inputs, labels in test:
            with self.resources.fabric.autocast():
                logits = module.outputs(inputs).logits
            losses.append(F.cross_entropy(logits, labels, reduction="none"))
        return torch.cat(losses).double().mean().item()

    def _sample(self, samples: Samples, index: Tensor) -> list[Batch]:
        """Batches of ``settings.samples`` of those at ``index``, the same in every round."""
        draw = torch_generator(self.resources.data.seed, "loss_surface_samples")
        chosen = torch.randperm(len(index), generator=draw)[: self.settings.samples]
        chosen = index[chosen.to(index.device)]
        size = self.resources.eval_batch_size
        if len(chosen) % size == 1 < len(chosen):
            chosen = chosen[:-1]  # BatchNorm needs two samples
        return list(samples.batches(size, chosen))


def window(
    models: Sequence[tuple[float, float]], points: int, half: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The x and the y [points] of a square grid around these models.

    Args:
        models: their (x, y).
        points: on each side of the square.
        half: half a side, if the models are all at one place.
    """
    low, high = np.min(models, axis=0), np.max(models, axis=0)
    extent = (high - low).max()
    if extent > 0:
        half = (0.5 + _MARGIN) * extent
    x, y = (np.linspace(c - half, c + half, points) for c in (low + high) / 2)
    return x, y


def _grid(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Row after row: all x with the first y, and so on."""
    return [(float(a), float(b)) for b in y for a in x]
