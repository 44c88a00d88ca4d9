"""A federation of parabolas: the model is two numbers, and a class is a parabola over them.

A client's objective is the mean over its samples, so that clients differ in optimum and curvature.
The gradient is curvature * w - pull, and all that a method does can be repeated in NumPy.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Clients, Memory, Model, Setting
from fedexp.core.sockets import Head, Loss, Regularizer
from fedexp.runtime.federation import Federation
from support.federations import federate

NAME = "head.w"
STEPS, LR, CLIENTS = 10, 0.2, 4
PARABOLAS = [
    "model._target_=support.federations.flatten",
    *("~model.hidden", "~model.feature_dim", "~model.rectify", "~model.batch_norm"),
    *(
        "head._target_=support.quadratic.TwoNumbers",
        "~head.bias",
        "loss._target_=support.quadratic.Height",
    ),
    *(
        "data.subset=200",
        "partition.beta=0.05",
        f"clients.count={CLIENTS}",
        f"local.epochs={STEPS}",
    ),
    *("local.batch_size=2000", f"optimizer.lr={LR}", "optimizer.momentum=0"),
    *("optimizer.weight_decay=0", "aggregator=uniform"),
    *("measure.personal=null", "measure.global.every=1000", "measure.prototypes.every=1000"),
]
CURVATURES = np.random.default_rng(0).uniform(0.3, 3, (10, 2))
OPTIMA = np.random.default_rng(1).normal(0, 2, (10, 2))


class TwoNumbers(Head):
    """Minus the height of each class's parabola at w, whatever the input."""

    curvatures: Tensor
    optima: Tensor

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2))
        self.register_buffer("curvatures", torch.tensor(CURVATURES).float(), persistent=False)
        self.register_buffer("optima", torch.tensor(OPTIMA).float(), persistent=False)

    def forward(self, z: Tensor) -> Tensor:
        heights = 0.5 * (self.curvatures * (self.w - self.optima).square()).sum(dim=1)
        return -heights.expand(len(z), -1)


class Height(Loss):
    """The mean height over the batch."""

    def forward(self, batch: Forward) -> Tensor:
        return -batch.mean(batch.logits.gather(1, batch.targets[:, None]).squeeze(1))


class Parabolas:
    """The federation, and its local objectives in float64."""

    def __init__(self, *overrides: str) -> None:
        self.federation: Federation = federate(*PARABOLAS, *overrides)
        counts = self.federation.data.class_counts.numpy()
        shares = counts / counts.sum(axis=1, keepdims=True)
        self.sizes: np.ndarray = counts.sum(axis=1)
        self.curvature: np.ndarray = shares @ CURVATURES
        self.pull: np.ndarray = shares @ (CURVATURES * OPTIMA)

    def run(self, rounds: int) -> None:
        for round in range(1, rounds + 1):
            self.federation.run_round(round)

    def cohorts(self, rounds: int) -> list[list[int]]:
        return [self.federation.sampler.select(round) for round in range(1, rounds + 1)]

    @property
    def w(self) -> np.ndarray:
        return self.federation.server.weights[NAME].numpy()

    @property
    def optimum(self) -> np.ndarray:
        """Of the mean of all clients' objectives."""
        return np.asarray(self.pull.sum(axis=0) / self.curvature.sum(axis=0))

    @property
    def samples_optimum(self) -> np.ndarray:
        """Of the mean over all samples."""
        return np.asarray(self.sizes @ self.pull / (self.sizes @ self.curvature))

    @property
    def part(self) -> Any:
        return self.federation.server.parts["regularizer"]

    def memory(self, client: int) -> dict[str, np.ndarray]:
        memory = self.federation.store.memory(client, "regularizer")
        return {name: value.numpy() for name, value in memory.items()}


class OneNumber:
    """A part's two halves by hand: a shared parameter "w", a private one "v", two clients."""

    def __init__(self, part: Regularizer, class_counts: Tensor | None = None) -> None:
        counts = torch.ones(2, 1, dtype=torch.int64) if class_counts is None else class_counts
        shapes = {"w": torch.Size([1]), "v": torch.Size([1])}
        self.part = part
        model = Model(shapes, frozenset({"w"}))
        part.setup(Setting(0, 9, 1, 1, len(counts), 2, Clients.of(counts), model))
        self.memories: list[Memory] = [{} for _ in counts]
        self.sizes: list[int] = counts.sum(dim=1).tolist()
        self.slope = 0.0  # of the client's loss at the received w

    def begin(self, client: int, w: float, start: float | None = None) -> None:
        """This client receives w, and its training starts from w or from another ``start``."""
        own = w if start is None else start
        self.weights = {"w": torch.tensor([own]), "v": torch.tensor([7.0])}
        message = PartMessage(1, {"w": torch.tensor([w])}, self.part.broadcast(1))
        self.part.begin(self._client(client, 1, 1), message, self.memories[client])

    def gradient(self, w: float) -> float:
        """What the part adds to the gradient at w."""
        at = torch.tensor([w], requires_grad=True)
        penalty = self.part([("w", at), ("v", torch.tensor([7.0]))])
        assert isinstance(penalty, Tensor)
        return float(torch.autograd.grad(penalty, at)[0])

    def end(self, client: int, w: float, steps: int, lr: float) -> Tensors:
        """It has trained w; what does it report?"""
        self.weights["w"] = torch.tensor([w])
        return self.part.report(self._client(client, steps, lr), self.memories[client])

    def merge(self, current: float, merged: float, *reports: Tensors) -> float:
        """The server's next w."""
        sums: Tensors = {}
        for report in reports:
            for name, value in report.items():
                sums[name] = sums.get(name, 0) + value.double()
        weights = {"w": torch.tensor([merged]), "mean": torch.tensor([3.0])}
        now = {"w": torch.tensor([current]), "mean": torch.tensor([2.0])}
        result = self.part.correct(now, weights, sums, len(reports))
        assert result["mean"] == 3
        return float(result["w"])

    def _client(self, client: int, steps: int, lr: float) -> Any:
        def optimizer_for(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD(parameters, lr)

        return SimpleNamespace(
            weights=self.weights,
            num_samples=self.sizes[client],
            steps=steps,
            learning_rate=lr,
            optimizer_for=optimizer_for,
            loss_gradient=lambda: {"w": torch.tensor([self.slope]), "v": torch.tensor([9.0])},
        )
