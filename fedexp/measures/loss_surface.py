"""The test loss on a plane through a round's global model and two local models (FedSC, Fig. 1b)."""

import logging
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedexp.config.compatibility.traits import Need
from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.randomness import seed_layers, torch_generator
from fedexp.data.samples import Samples
from fedexp.drawing.loss_surface_figure import MarkedModel, loss_surface_figure
from fedexp.errors import InputError
from fedexp.measures import parameter_plane
from fedexp.measures.measure import AfterRound, Measure, Measured, Outline
from fedexp.measures.parameter_plane import ParameterPlane, plane_through

LOGGER = logging.getLogger(__name__)

_MARGIN = 0.35
"""Margin around the models, as a share of their extent in x or y, whichever is larger."""


class LossSurface(Measure):
    """``loss_surface``: the test loss on a plane through models of one round.

    The figure has a value for each point of a square grid in the plane; a point is a model. The
    local models are the updates of the round's two clients with the lowest numbers. Private
    parameters have their initial values. BatchNorm statistics are estimated anew at each point, on
    the clients' training samples; fixed statistics (``core.fixed_weights``) stay. All other buffers
    have the global model's values.

    Args:
        rounds: the rounds after which the surface is drawn; None: only the last round.
        plane: if ``local``, the plane goes through the global model and the two local models; if
            ``random``, through the global model in two random directions.
        points: grid points along each side of the square; several processes share the points.
        samples: number of test images scored at each point; the BatchNorm statistics are estimated
            on equally many training images.
    """

    needs = frozenset({Need.GLOBAL_MODEL, Need.CLASS_LABELS, Need.TEST_CLASSES, Need.ALL_CLIENTS})

    def __init__(
        self,
        rounds: list[PositiveInt] | None,
        plane: Literal["local", "random"],
        points: Annotated[int, Field(ge=2, le=201)],
        samples: Annotated[int, Field(ge=2)],
    ) -> None:
        self.rounds, self.plane, self.points, self.samples = rounds, plane, points, samples
        self._local: dict[int, Tensors] = {}

    def check(self, outline: Outline) -> None:
        """Raise InputError if one of ``rounds`` comes after the last round of the run."""
        rounds = outline.rounds
        if any(round > rounds for round in self.rounds or ()):
            raise InputError(
                f"measure.loss_surface.rounds={self.rounds}: must be at most rounds={rounds}"
            )

    def due(self, round: int, rounds: int) -> bool:
        """True after each round in ``self.rounds``; if that is None, after the last round."""
        return round in (self.rounds if self.rounds is not None else [rounds])

    def begin_round(self, message: Message) -> None:
        """Forget the last round's local models."""
        self._local = {}

    def observe(self, update: Update) -> None:
        """Keep the update if its client number is one of the two lowest so far in this round."""
        if self.plane == "local":
            kept = sorted({*self._local, update.client})[:2]
            if update.client in kept:
                copy = {name: weight.clone() for name, weight in update.weights.items()}
                self._local[update.client] = copy
            self._local = {client: self._local[client] for client in kept}

    def __call__(self, after: AfterRound) -> Measured:
        """The figure; nothing if the plane needs local models and the round has no updates.

        If the square of a weight overflows, because training diverged, there is no figure, either.
        """
        message = after.message
        local = dict(list(after.ranks.gather_pairs(self._local.items()))[:2])
        self._local = {}
        if self.plane == "local" and not local:
            LOGGER.warning("measure.loss_surface: round %d has no local model", after.round)
            return Measured()
        module = after.global_model()
        names = [name for name, _ in module.named_parameters() if name in message.weights]
        start = {name: message.weights[name] for name in names}
        models_of = ({name: each[name] for name in names} for each in (start, *local.values()))
        if not all(parameter_plane.flatten(each).norm().isfinite() for each in models_of):
            LOGGER.warning("measure.loss_surface: round %d: its weights are too large", after.round)
            return Measured()
        draw = torch_generator(after.seed, "loss_surface", after.round)
        plane = plane_through(start, list(local.values()), draw)
        models = {"global model": (0.0, 0.0)}
        models |= {f"client {k}": plane.project(weights) for k, weights in local.items()}
        across = parameter_plane.filter_normalized(start, draw)
        half = parameter_plane.flatten(across).norm().item()
        x, y = window(list(models.values()), self.points, half)
        losses = self._losses(after, plane, [*_grid(x, y), *models.values()])
        cells, marked = np.split(losses, [len(x) * len(y)])
        marks = [MarkedModel(n, *p, v) for (n, p), v in zip(models.items(), marked, strict=True)]
        surface = cells.reshape(len(y), len(x))
        figure = loss_surface_figure(x, y, surface, marks, plane.is_random, after.round)
        return Measured(figures={"loss_surface": figure})

    def _losses(
        self, after: AfterRound, plane: ParameterPlane, points: Sequence[tuple[float, float]]
    ) -> NDArray[np.float64]:
        """The mean test loss [n] at each of n ``points``; the processes share the points."""
        data, device, ranks = after.data, after.resources.module.device, after.ranks
        trained = torch.cat([client.train_index for client in data.clients])
        train = self._sample(after, data.train, trained)
        test = self._sample(after, data.test, torch.arange(len(data.test), device=device))
        own = range(ranks.rank, len(points), ranks.size)
        found = ((n, _loss(after, plane.at(*points[n]), train, test)) for n in own)
        return np.array([loss for _, loss in ranks.gather_pairs(found)])

    def _sample(self, after: AfterRound, samples: Samples, index: Tensor) -> list[Batch]:
        """Batches of a random subset of the samples at ``index``, the same in every round."""
        draw = torch_generator(after.seed, "loss_surface_samples")
        chosen = torch.randperm(len(index), generator=draw)[: self.samples]
        chosen = index[chosen.to(index.device)]
        size = after.resources.eval_batch_size
        if len(chosen) % size == 1 < len(chosen):
            chosen = chosen[:-1]  # a last batch of one sample is too small for BatchNorm
        return list(samples.batches(size, chosen))


@torch.no_grad()
def _loss(
    after: AfterRound, weights: Tensors, train: Sequence[Batch], test: Sequence[Batch]
) -> float:
    """The mean cross-entropy on ``test`` of the model with these weights.

    The model's BatchNorm statistics are first estimated on ``train``.
    """
    module = after.resources.module.eval()
    module.load(weights)
    seed_layers(module.device, after.seed, "loss_surface", after.round)  # for dropout
    _estimate_statistics(module, train)
    losses = []
    for inputs, labels in test:
        with after.resources.fabric.autocast():
            logits = module.outputs(inputs).logits
        losses.append(F.cross_entropy(logits, labels, reduction="none"))
    return torch.cat(losses).double().mean().item()


def _estimate_statistics(module: ClientModule, batches: Sequence[Batch]) -> None:
    """Set the BatchNorm statistics to their means over the batches; then set eval mode."""
    module.train()
    norms = (each for each in module.modules() if isinstance(each, _BatchNorm))
    momenta = {norm: norm.momentum for norm in norms if norm.training}  # fixed ones are not
    for norm in momenta:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean
    for inputs, _ in batches if momenta else ():
        module.head(module.backbone(inputs))
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    module.eval()


def window(
    models: Sequence[tuple[float, float]], points: int, half: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The x coordinates and the y coordinates of a square grid around the models, each [points].

    Args:
        models: the (x, y) of each model.
        points: grid points along each side of the square.
        half: half the length of a side, for the case that all models are at one point.
    """
    low, high = np.min(models, axis=0), np.max(models, axis=0)
    extent = (high - low).max()
    if extent > 0:
        half = (0.5 + _MARGIN) * extent
    x, y = (np.linspace(c - half, c + half, points) for c in (low + high) / 2)
    return x, y


def _grid(x: NDArray[np.float64], y: NDArray[np.float64]) -> list[tuple[float, float]]:
    """The grid's points (x, y), row after row: first all points with the first y, and so on."""
    return [(float(a), float(b)) for b in y for a in x]
