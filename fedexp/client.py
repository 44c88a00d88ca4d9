"""The client: a LightningModule that any engine, and a stock Trainer, can train."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from fedexp.data.federated import Batch, ClientData
from fedexp.heads.base import Head
from fedexp.losses.base import Forward, Loss
from fedexp.messages import Tensors
from fedexp.parts import Part
from fedexp.regularizers.base import Regularizer

OptimizerFactory = Callable[[Iterable[nn.Parameter], int], Optimizer]
"""(parameters, round) -> a fresh local optimizer."""


class ClientModule(LightningModule):
    """Backbone, head, loss and regularizer: the objective of one client's local training.

    There is one such module in a process. It is re-seated for each client: weights are copied in
    place, the parts' ``begin`` sets their buffers, ``start`` says whose turn it is. So the
    objective is a pure function of (parameters, buffers, batch).
    """

    data: ClientData
    round: int
    learning_rate: float  # of this round's local optimizer
    steps: int  # gradient steps taken in this round
    measured: dict[str, Tensors]  # socket -> what its part measures, summed over these steps
    noted: dict[str, float]  # what parts note for the log: name -> value
    directions: dict[str, Tensors]  # steps in parameter space that parts note for the log

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        loss: Loss,
        regularizer: Regularizer,
        optimizer: OptimizerFactory,
        parts: Mapping[str, Part] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.loss, self.regularizer = loss, regularizer
        self.optimizer = optimizer
        self.parts = parts
        self._derived = {f"head.{name}" for name in head.derived}
        self._features: tuple[Tensor, Tensor] | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, C]."""
        logits: Tensor = self.head(self.backbone(inputs))
        return logits

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The local objective on one batch, a scalar."""
        loss, forward = self.objective(batch)
        self._measure(forward)
        return loss

    def objective(self, batch: Batch) -> tuple[Tensor, Forward]:
        """The local objective and the forward pass that it comes from; changes nothing."""
        inputs, targets = batch
        z = self.backbone(inputs)
        forward = Forward(z, self.head(z), targets)
        loss: Tensor = self.loss(forward)
        penalty: Tensor | float = self.regularizer(self.trained_parameters())
        return loss + penalty, forward

    def configure_optimizers(self) -> Optimizer:
        """A fresh optimizer for this round over the parameters that are being trained."""
        self._features = None  # what they were computed with is about to change
        optimizer = self.optimizer([value for _, value in self.trained_parameters()], self.round)
        self.learning_rate = optimizer.param_groups[0]["lr"]
        return optimizer

    def start(self, data: ClientData, round: int) -> None:
        """It is this client's turn."""
        self.data, self.round, self.steps = data, round, 0
        self.measured, self.noted, self.directions = {}, {}, {}

    @torch.no_grad()
    def _measure(self, forward: Forward) -> None:
        self.steps += 1
        for name, part in self.parts.items():
            if found := part.measure(forward):
                sums = self.measured.setdefault(name, {})
                for key, value in found.items():
                    sums[key] = sums[key] + value if key in sums else value

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, parameter) of everything that local training moves now."""
        return ((name, value) for name, value in self.named_parameters() if value.requires_grad)

    @property
    def weights(self) -> Tensors:
        """Every parameter and persistent buffer by name, sharing memory with the module."""
        return self.state_dict()

    def travels(self, name: str) -> bool:
        """Whether this weight may leave the client: all but what the head derives."""
        return name not in self._derived

    def features(self, batch_size: int = 1000) -> tuple[Tensor, Tensor]:
        """Features z [n, d] and labels [n] of this client's training data under its present model.

        One pass in eval mode without augmentation, shared by all parts that report after training.
        """
        if self._features is None:
            self.eval()
            with torch.no_grad():
                pairs = [(self.backbone(x), y) for x, y in self.data.batches(batch_size)]
            z, y = zip(*pairs, strict=True)
            self._features = torch.cat(z), torch.cat(y)
        return self._features

    @torch.no_grad()
    def seat(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` into the module in place; names that are not given stay as they are."""
        self._features = None
        own = self.weights
        for name, value in weights.items():
            own[name].copy_(value)

    def train_only(self, prefixes: tuple[str, ...]) -> None:
        """Let only the parameters move whose name starts with one of ``prefixes``."""
        for name, value in self.named_parameters():
            value.requires_grad_(name.startswith(prefixes))
