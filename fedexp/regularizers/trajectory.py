"""FedPTR and FedPTR-S: local models are pulled to a prediction of the next global model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.config.compatibility.traits import (
    ACTS_ON_SHARED,
    DERIVES_CLASSIFIER,
    OTHER_START,
    PRIVATE_STATISTICS,
    SECOND_DERIVATIVES,
    TAKES_STALE,
    UNTRAINED_CLASSIFIER,
)
from fedexp.contract import Client, Functional, Memory, Regularizer, Setting
from fedexp.core.description import Description
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError
from fedexp.regularizers.anchors import Anchors, total
from fedexp.regularizers.layers import Grouping, layers_of
from fedexp.regularizers.look_ahead import MatchingOptions, StepMatching, cross_entropy_of
from fedexp.regularizers.matching import project
from fedexp.regularizers.synthetic import (
    OTHER_CLASSIFIER,
    OTHER_MODELS,
    Augmentation,
    Start,
    check_inputs,
    client_start,
    noise,
    synthetic_labels,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_EPS = 1e-12
_MOST_DISTANCES = 30

_NOT_AT_THE_SERVER = {
    DERIVES_CLASSIFIER: "regularizer.side=server: the server predicts from the global model, but "
    "this {other} computes its classifier from class means, which at the server are those of the "
    "client that trained last; use side=client",
    OTHER_START: "regularizer.side=server: the server predicts one next model and pulls every "
    "client to it, but this {other} may start clients from other models; use side=client",
    PRIVATE_STATISTICS: "regularizer.side=server: needs the whole model, but with this {other} the "
    "running statistics stay with the clients; use side=client",
}
"""``forbids`` with ``side=server``: the server lacks the model that the clients start from."""


class Trajectory(Regularizer):
    """A pull of the local model to w~, a prediction of the next global model (FedPTR).

    The penalty is the sum over layers j of $(lam_j / 2) ||w_j - w~_j||^2$ (Chen et al., arXiv
    2312.14380). w_j are the parameters of layer j. w^t is the global model of round t. A small
    synthetic dataset D~ and a step size are learned so that gradient steps on D~ lead from w^(t-m)
    to w^t. Then, in every round, further gradient steps on D~ lead from w^t to w~. Each round
    continues learning from the D~ and the step size of earlier rounds, but starts with zero
    momentum. The loss on D~ is the plain cross-entropy of the global model in eval mode, even if
    the method has another loss or an adapted head.

    Parameters that have not changed for m rounds are not matched; they are pulled to w^t. There is
    no pull before the first w^(t-m) exists, and no pull if the whole w^t equals w^(t-m). If
    learning gives a D~ or a step size that is not finite, the earlier D~ and step size are kept. If
    w~ is not finite, there is no pull. In these two cases the metric ``trajectory/diverged`` is 1.

    With ``side=client`` each client learns a D~ and stores it in its memory, and t counts only the
    rounds of this client. With ``side=server`` (FedPTR-S) the server has one D~ and sends w~ with
    the message. ``StepMatching`` describes the tensors that are stored.

    Args:
        side: the side that learns D~.
        lag: m, the number of rounds between the models w^(t-m) and w^t.
        wait: rounds to skip, beginning with the first for which w^(t-m) exists. With 1 the pull
            acts in rounds t > m, where the first round is t = 0, as in the paper's Algorithm 2.
        ipc: number of images of each class in D~. Their labels are not learned.
        init: a client's initial D~. With ``images`` (paper) the classes that the client holds get
            images of the client, drawn with replacement, and the other classes get noise.
            ``distinct_images`` is like ``images``, but an image repeats only if the class has fewer
            than ``ipc`` images. With ``noise`` all classes get noise. The server's initial D~ is
            always noise.
        outer_steps: H, updates of D~ and of the step size in a round.
        inner_steps: R, gradient steps on D~ in each outer step.
        augment: with ``dsa`` Differentiable Siamese Augmentation is applied to D~ before every
            inner step, but not before the steps from w^t to w~.
        step_size: initial size of the inner steps.
        image_lr: learning rate of the images.
        step_lr: learning rate of the step size.
        momentum: momentum factor in learning the images and the step size. Each round starts with
            zero momentum.
        project_steps: K, gradient steps from w^t to w~.
        project_lr: learning rate of the steps from w^t to w~.
        lam: strength of the pull.
        adaptive: whether lam_j = lam / ||w_j - w~_j||, a factor that gets no gradient. Then the
            strength of the pull on a layer does not depend on the distance. If false, lam_j = lam.
        layers: grouping of parameters into layers j, see ``layers_of``. Parameters that belong to
            no layer are not pulled.
        log_distances: whether to log ||w_j - w~_j|| of the first 30 layers after local training, as
            ``trajectory/distance/<layer>``.
        update_every: number of rounds from one learning of D~ to the next. If None, D~ is learned
            only once. w~ is computed in every round.
        recompute: whether to repeat each inner step in the backward pass, to save memory.
    """

    unread_if = {"init": {"side": ("server",)}}
    takes_tokens = False
    saved = ("round", "memory", "projected")
    traits = frozenset({ACTS_ON_SHARED, SECOND_DERIVATIVES, TAKES_STALE})
    forbids: Mapping[str, str] = {UNTRAINED_CLASSIFIER: OTHER_CLASSIFIER}
    active: Tensor

    def __init__(
        self,
        side: Literal["client", "server"],
        lag: PositiveInt,
        wait: NonNegativeInt,
        ipc: PositiveInt,
        init: Start,
        outer_steps: PositiveInt,
        inner_steps: PositiveInt,
        augment: Augmentation,
        step_size: float,
        image_lr: NonNegativeFloat,
        step_lr: NonNegativeFloat,
        momentum: Annotated[float, Field(ge=0, lt=1)],
        project_steps: PositiveInt,
        project_lr: PositiveFloat,
        lam: NonNegativeFloat,
        adaptive: bool,
        layers: Grouping,
        log_distances: bool,
        update_every: PositiveInt | None,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.side, self.ipc, self.init, self.augment = side, ipc, init, augment
        if side == "server":
            self.forbids = {**self.forbids, **_NOT_AT_THE_SERVER}
        else:
            self.discourages = {OTHER_START: OTHER_MODELS}
        self.lam, self.adaptive = lam, adaptive
        self.layers, self.log_distances = layers, log_distances
        self._project = partial(project, steps=project_steps, lr=project_lr)
        options = MatchingOptions(outer_steps, inner_steps, image_lr, step_lr, momentum, recompute)
        augments = augment == "dsa"
        self.matching = StepMatching(lag, wait, step_size, update_every, augments, options)
        self.round = 0
        self.memory: Memory = {}
        self.projected: Tensors = {}
        self._metrics: dict[str, float] = {}

    def setup(self, setting: Setting) -> None:
        """Make the buffers that will hold w~, the predicted next global model.

        Raises InputError if an option does not fit the experiment.
        """
        self.setting = setting
        shared = setting.model.shared_parameters
        private = sorted(setting.model.parameters.keys() - shared.keys())
        if self.side == "server" and private:
            raise InputError(
                f"regularizer.side=server: needs the whole model, but {private[0]} stays with the "
                "clients; use side=client"
            )
        check_inputs(self.augment, setting)
        self.anchors = Anchors(shared)
        self.register_buffer("active", torch.zeros(()), persistent=False)
        self._layer_of = layers_of(shared, self.layers)
        self.matching = replace(self.matching, names=frozenset(shared))

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar; 0 if there is no prediction w~ of the next global model."""
        pulls = [self._pull(square) for square in self._squared_distances(parameters).values()]
        return 0.5 * self.lam * self.active * total(pulls)

    def _squared_distances(self, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """For each layer, its squared distance from w~, the predicted next model."""
        squares: dict[str, Tensor] = {}
        for name, value in parameters:
            if (layer := self._layer_of.get(name)) is not None:
                square = (value - self.anchors[name]).square().sum()
                squares[layer] = squares[layer] + square if layer in squares else square
        return squares

    def _pull(self, square: Tensor) -> Tensor:
        """A layer's pull: the squared distance, which ``adaptive`` divides by the distance."""
        return square / (square.detach().sqrt() + _EPS) if self.adaptive else square

    # The server's half, used with side=server.

    def broadcast(self, round: int) -> Tensors:
        """Send w~, the predicted next global model, if there is one."""
        return dict(self.projected)

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Increase the round number and clear the metrics."""
        self.round += 1
        self._metrics = {}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """With ``side=server`` predict the next model. Return the merged weights unchanged."""
        if self.side == "server":
            if not self.memory:
                self.matching.remember(self.memory, current)
            model = self.setting.server.global_model(self.round + 1, merged)
            draw = partial(noise, self.setting, self.ipc, self.active.device)
            ahead, self._metrics = self._predict(self.memory, merged, model, draw, self.round)
            self.projected = {name: merged[name] for name in self.anchors} | ahead if ahead else {}
        return merged

    def metrics(self) -> dict[str, float]:
        """Metrics of the latest round: how the server learned the synthetic dataset D~."""
        return self._metrics

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """A figure of the server's D~, or else of the D~ of the first client that has one."""
        from fedexp.regularizers.synthetic_images import dataset_figure

        return dataset_figure(chain([self.memory], memories.values()), about)

    # The client's half.

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Set the anchors to w~, the predicted next global model.

        The server sent w~, or this client computes w~ now.
        """
        if self.side == "server":
            ahead = message.extras
        else:
            data, round, device = client.data, message.round, self.active.device
            draw = partial(client_start, self.setting, self.ipc, device, data, round, self.init)
            key = (round, data.client)
            ahead, metrics = self._predict(
                memory, message.weights, client.global_model(), draw, *key
            )
            client.record(metrics)
        self.active.fill_(bool(ahead))
        if ahead:
            self.anchors.set(message.weights | ahead)
            steps = {name: value - message.weights[name] for name, value in ahead.items()}
            client.compare("projected", steps)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """If ``log_distances`` is true, log each layer's distance to w~. Nothing is sent.

        w~ is the predicted next global model.
        """
        if self.log_distances and self.active and self._layer_of:
            squares = self._squared_distances(client.weights.items())
            lengths = torch.stack(list(squares.values())[:_MOST_DISTANCES]).sqrt().tolist()
            names = (f"trajectory/distance/{layer}" for layer in squares)
            client.record(dict(zip(names, lengths, strict=False)))
        return {}

    def _predict(
        self,
        memory: Memory,
        weights: Tensors,
        model: Functional,
        draw: Callable[[], Tensor],
        *key: int,
    ) -> tuple[Tensors, dict[str, float]]:
        """Learn D~ and compute w~; return w~ of the parameters that changed, and metrics.

        The first result is empty if no parameter changed, if there is no D~, or if w~ is not
        finite. ``key`` seeds the augmentation; ``StepMatching.learn`` explains the other arguments.
        """
        labels = synthetic_labels(self.setting.num_classes, self.ipc, self.active.device)
        generator = torch_generator(self.setting.seed, "augment synthetic", *key)
        now, metrics = self.matching.learn(memory, weights, model, labels, draw, generator)
        if not now or "synthetic" not in memory:
            return {}, metrics
        ahead = self._project(cross_entropy_of(model), now, memory["synthetic"], labels)
        if not torch.stack([value.isfinite().all() for value in ahead.values()]).all():
            return {}, metrics | {"trajectory/diverged": 1.0}
        return ahead, metrics
