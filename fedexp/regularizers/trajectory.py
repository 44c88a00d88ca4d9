"""FedPTR and FedPTR-S: a pull to where the global model is heading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor

from fedexp.core.client_protocol import Client, LocalData
from fedexp.core.compatibility import SECOND_DERIVATIVES
from fedexp.core.description import Description
from fedexp.core.functional import functional
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Functional, Memory, Setting
from fedexp.core.randomness import torch_generator
from fedexp.core.sockets import Regularizer
from fedexp.errors import InputError
from fedexp.regularizers.anchors import Anchors, prefixed, shared_parameters, total, with_prefix
from fedexp.regularizers.figures import synthetic_images
from fedexp.regularizers.matching import FunctionalLoss, match_trajectory, project

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Trajectory", "match_trajectory", "real_images"]

_EPS = 1e-12


class Trajectory(Regularizer):
    """sum over layers j of (lam_j / 2) ||w_j - w~_j||^2 (Chen et al., arXiv 2312.14380).

    w~ is the next global model as a small synthetic dataset D~ foresees it. D~, with an inner step
    size, is learnt so that gradient steps on it lead from w^(t-m) to w^t; further steps on it from
    w^t lead to w~. Each round goes back to w^t for this; D~ and the step size stay and are learnt
    further, the momentum of learning them does not. What is descended on D~ is the plain
    cross-entropy of the global model in eval mode, whatever the loss and the head's adaptation to
    a client.

    A layer is one parameter tensor, weight and bias each one of their own. A parameter that is
    where it was m rounds ago takes no part. Without a model m rounds older there is no term; nor is
    there in a round in which all of w^t equals w^(t-m). If learning D~ ends in numbers that are not
    finite, D~ and the step size stay what they were; a w~ that is not finite is no term either.
    ``trajectory/diverged`` counts both.

    One memory belongs to each client (``side=client``), which then counts the models that it has
    itself received, or to the server (``side=server``, FedPTR-S), which sends w~ with the message.
    In it are ``synthetic`` [C * ipc, *input_shape], ``step_size``, the number of models ``seen``,
    and the last m of these as ``<slot>/<name>``.

    Args:
        side: who keeps D~: each client, starting from its own images and, for the classes that it
            lacks, noise; or the server, starting from noise.
        lag: m.
        ipc: images of each class in D~; their labels are fixed.
        outer_steps: H, updates of D~ and of the step size in a round.
        inner_steps: R, gradient steps on D~ in each of them.
        step_size: of the inner steps, to begin with.
        image_lr: learning rate of the images.
        step_lr: learning rate of the step size.
        momentum: of both, within a round.
        project_steps: K, gradient steps from w^t to w~.
        project_lr: their learning rate.
        lam: strength of the pull.
        adaptive: lam_j = lam / ||w_j - w~_j||, a constant for the gradient, so that each layer is
            pulled alike however far it is; else lam_j = lam.
        update_every: D~ is learnt every so many rounds, and w~ projected in all of them; None
            learns it once.
        recompute: see ``matching_loss``.
    """

    traits = frozenset({SECOND_DERIVATIVES})
    active: Tensor

    def __init__(
        self,
        side: Literal["client", "server"],
        lag: PositiveInt,
        ipc: PositiveInt,
        outer_steps: PositiveInt,
        inner_steps: PositiveInt,
        step_size: float,
        image_lr: NonNegativeFloat,
        step_lr: NonNegativeFloat,
        momentum: Annotated[float, Field(ge=0, lt=1)],
        project_steps: PositiveInt,
        project_lr: PositiveFloat,
        lam: NonNegativeFloat,
        adaptive: bool,
        update_every: PositiveInt | None,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.side, self.lag, self.ipc, self.step_size = side, lag, ipc, step_size
        self.lam, self.adaptive, self.update_every = lam, adaptive, update_every
        self._match = partial(
            match_trajectory,
            outer_steps=outer_steps,
            inner_steps=inner_steps,
            image_lr=image_lr,
            step_lr=step_lr,
            momentum=momentum,
            recompute=recompute,
        )
        self._project = partial(project, steps=project_steps, lr=project_lr)
        self._round = 0
        self._memory: Memory = {}
        self._projected: Tensors = {}
        self._metrics: dict[str, float] = {}

    def setup(self, setting: Setting) -> None:
        """Anchors for w~, and whether there is one. Raises InputError if a side cannot work."""
        self.setting = setting
        shared = shared_parameters(setting)
        private = sorted(setting.parameter_shapes.keys() - shared.keys())
        if self.side == "server" and private:
            raise InputError(
                f"regularizer.side=server: needs the whole model, but {private[0]} stays with the "
                "clients; use side=client"
            )
        self.anchors = Anchors(shared)
        self.register_buffer("active", torch.zeros(()), persistent=False)

    def forward(self, parameters: Iterable[tuple[str, Tensor]]) -> Tensor | float:
        """The penalty, a scalar; 0 without w~."""
        differences = [value - self.anchors[n] for n, value in parameters if n in self.anchors]
        return 0.5 * self.lam * self.active * total([self._pull(each) for each in differences])

    def _pull(self, difference: Tensor) -> Tensor:
        """||w_j - w~_j||^2, over its norm if the strength adapts to the layer."""
        square = difference.square().sum()
        return square / (square.detach().sqrt() + _EPS) if self.adaptive else square

    # The server's half: nothing to do unless it is the server that looks ahead.

    def broadcast(self, round: int) -> Tensors:
        """w~, if there is one."""
        return dict(self._projected)

    def aggregate(self, updates: Sequence[Update]) -> None:
        """Count the rounds."""
        self._round += 1
        self._metrics = {}

    def correct(self, current: Tensors, merged: Tensors, sums: Tensors, clients: int) -> Tensors:
        """The weights as they are; look ahead from them for the next round."""
        if self.side == "server":
            assert self.setting.functional is not None
            if not self._memory:
                self._remember(self._memory, current)
            model = self.setting.functional(self._round + 1, merged)
            ahead, self._metrics = self._look_ahead(self._memory, merged, model, self._draw_noise)
            self._projected = {name: merged[name] for name in self.anchors} | ahead if ahead else {}
        return merged

    def metrics(self) -> dict[str, float]:
        """What there is to say about D~."""
        return self._metrics

    def figures(self, memories: Mapping[int, Memory], about: Description) -> dict[str, Figure]:
        """D~, of the server or of the first client that has one."""
        candidates = chain([self._memory], (memories[client] for client in sorted(memories)))
        sets = (memory["synthetic"] for memory in candidates if "synthetic" in memory)
        images = next(sets, None)
        figure = None if images is None else synthetic_images(images, about)
        return {} if figure is None else {"trajectory/synthetic": figure}

    def server_state(self) -> dict[str, Any]:
        """What the server remembers, and w~."""
        return {"round": self._round, "memory": self._memory, "projected": self._projected}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        device = self.active.device
        self._round = state["round"]
        self._memory = {name: value.to(device) for name, value in state["memory"].items()}
        self._projected = {name: value.to(device) for name, value in state["projected"].items()}

    # The client's half.

    def begin(self, client: Client, message: Message, memory: Memory) -> None:
        """Set the anchors to w~, which is the server's or this client's own."""
        if self.side == "server":
            ahead = message.extras.get("regularizer", {})
        else:
            model = functional(client, message)
            draw = partial(self._draw_images, client.data, message.round)
            ahead, noted = self._look_ahead(memory, message.weights, model, draw)
            client.logged.update(noted)
        self.active.fill_(bool(ahead))
        if ahead:
            self.anchors.set(message.weights | ahead)
            steps = {name: value - message.weights[name] for name, value in ahead.items()}
            client.directions["projected"] = steps

    # What both sides do.

    def _look_ahead(
        self, memory: Memory, weights: Tensors, model: Functional, draw: Callable[[], Tensor]
    ) -> tuple[Tensors, dict[str, float]]:
        """w~ of the parameters that move, empty if there is none; and numbers for the log.

        Args:
            memory: whose look ahead it is; takes in ``weights``, and D~ as it becomes.
            weights: w^t.
            model: the global model.
            draw: D~ to begin with.
        """
        past = self._remember(memory, weights)
        moving = {name: old for name, old in past.items() if not torch.equal(old, weights[name])}
        if not moving:
            return {}, {}
        now = {name: weights[name] for name in moving}
        loss = partial(_cross_entropy, model)
        noted = {"trajectory/diverged": 0.0}
        if self._is_due(memory):
            noted |= self._learn(memory, loss, moving, now, draw)
        if "synthetic" not in memory:
            return {}, noted
        noted["trajectory/step_size"] = memory["step_size"].item()
        ahead = self._project(loss, now, memory["synthetic"], self._labels())
        if not all(map(_finite, ahead.values())):
            return {}, noted | {"trajectory/diverged": 1.0}
        return ahead, noted

    def _learn(
        self,
        memory: Memory,
        loss: FunctionalLoss,
        past: Tensors,
        now: Tensors,
        draw: Callable[[], Tensor],
    ) -> dict[str, float]:
        """Learn D~ and the step size further, if that stays finite; and numbers for the log."""
        begun = "synthetic" in memory
        images = memory["synthetic"] if begun else draw()
        size = memory["step_size"] if begun else torch.tensor(self.step_size).to(images)
        images, size, losses = self._match(loss, past, now, images, self._labels(), size)
        if not (_finite(images) and _finite(size)):
            return {"trajectory/diverged": 1.0}
        memory.update(synthetic=images, step_size=size)
        return {"trajectory/matching_loss": losses[-1].item()}

    def _is_due(self, memory: Memory) -> bool:
        """Whether D~ is to be learnt now."""
        if "synthetic" not in memory or self.update_every is None:
            return "synthetic" not in memory
        return (int(memory["seen"]) - 1 - self.lag) % self.update_every == 0

    def _remember(self, memory: Memory, weights: Tensors) -> Tensors:
        """Put the model in the place of the one m models ago, and return that, if there is one."""
        seen = int(memory.get("seen", 0))
        slot = str(seen % self.lag)
        past = with_prefix(slot, memory)
        # Nobody writes into weights that were sent, so they need not be copied for each client.
        memory.update(prefixed(slot, {name: weights[name] for name in self.anchors}))
        memory["seen"] = torch.tensor(seen + 1)
        return past

    def _labels(self) -> Tensor:
        """Of D~: ``ipc`` times each class."""
        classes = torch.arange(self.setting.num_classes, device=self.active.device)
        return classes.repeat_interleave(self.ipc)

    def _draw_noise(self, *key: int) -> Tensor:
        """D~ of Gaussian noise, [C * ipc, *input_shape]."""
        shape = (self.setting.num_classes * self.ipc, *self.setting.input_shape)
        generator = torch_generator(self.setting.seed, "synthetic", *key)
        return torch.randn(shape, generator=generator).to(self.active.device)

    def _draw_images(self, data: LocalData, round: int) -> Tensor:
        """D~ of the client's images, and noise for the classes that it lacks."""
        images = self._draw_noise(round, data.client)
        for label in data.class_counts.nonzero().flatten().tolist():
            rows = slice(label * self.ipc, (label + 1) * self.ipc)
            images[rows] = real_images(data, label, self.ipc, self.setting.seed, round)
        return images


def real_images(data: LocalData, label: int, count: int, seed: int, round: int) -> Tensor:
    """``count`` random images of one class that the client holds, as the model sees them.

    Without augmentation, [count, *input_shape]. A client with fewer of them repeats them in turn.
    """
    held = (data.labels == label).nonzero().flatten()
    generator = torch_generator(seed, "synthetic", round, data.client, label)
    order = torch.randperm(len(held), generator=generator).to(held.device)
    return data.inputs(held[order[torch.arange(count) % len(held)]])


def _cross_entropy(
    model: Functional, parameters: Tensors, inputs: Tensor, labels: Tensor
) -> Tensor:
    return F.cross_entropy(model(parameters, inputs), labels)


def _finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())
