"""The client: a LightningModule that any engine, and a stock Trainer, can train."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from fedexp.data.federated import Batch, ClientData
from fedexp.heads.base import Head
from fedexp.inventory import Inventory
from fedexp.losses.base import Forward, Loss
from fedexp.messages import Tensors
from fedexp.parts import Part
from fedexp.personalization.base import Personalization, Phase
from fedexp.reference import Outputs, References, full_precision, outputs
from fedexp.regularizers.base import Regularizer

OptimizerFactory = Callable[[Iterable[nn.Parameter], int], Optimizer]
"""(parameters, round) -> a fresh local optimizer."""


_TURN = ("data", "round", "own", "steps", "measured", "noted", "directions")


class ClientModule(LightningModule):
    """Backbone, head, loss, regularizer and personalization: the objective of local training.

    There is one such module in a process. It is re-seated for each client: weights are copied in
    place, the parts' ``begin`` sets their buffers, ``start`` says whose turn it is. So the
    objective is a pure function of (parameters, buffers, batch).
    """

    data: ClientData
    round: int
    own: bool  # whether it is a model of the client's own that trains, rather than the shared one
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
        personalization: Personalization,
        optimizer: OptimizerFactory,
        parts: Mapping[str, Part] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head
        self.loss, self.regularizer = loss, regularizer
        self.personalization = personalization
        self.optimizer = optimizer
        self.parts = parts
        self.references = References((), backbone, head)
        self._trains: tuple[str, ...] = ("",)
        self._derived = {f"head.{name}" for name in head.derived}
        self._features: tuple[Tensor, Tensor] | None = None
        self.inventory = Inventory(self)

    def complete(self) -> None:
        """Once, when the parts are set up: also makes the other models that the loss asks for."""
        self.references = References(self.loss.references, self.backbone, self.head)
        self.inventory = Inventory(self)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, C]."""
        return self.outputs(inputs).logits

    def outputs(self, inputs: Tensor) -> Outputs:
        """Features and logits of ``inputs`` [B, ...]."""
        return outputs(self.backbone, self.head, inputs)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The local objective on one batch, a scalar."""
        loss, forward = self.objective(batch)
        self.steps += 1
        self.add_up(self.measure(forward))
        return loss

    def objective(self, batch: Batch, real: Tensor | None = None) -> tuple[Tensor, Forward]:
        """The local objective and the forward pass that it comes from; changes nothing.

        ``real`` [B] is as in ``Forward``.
        """
        inputs, targets = batch
        z, logits = self.outputs(inputs)
        forward = Forward(z, logits, targets, real)
        references = self.references(inputs)
        with full_precision(z):
            loss: Tensor = self.loss(forward, **references) + self.personalization.term(forward)
            pull = self.personalization.pull if self.own else self.regularizer
            penalty: Tensor | float = pull(self.trained_parameters())
        return loss + penalty, forward

    def configure_optimizers(self) -> Optimizer:
        """A fresh optimizer for this round over the parameters that are being trained."""
        return self.optimizer_for(value for _, value in self.trained_parameters())

    def optimizer_for(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A fresh optimizer for this round over these parameters."""
        self._features = None  # what they were computed with is about to change
        optimizer = self.optimizer(list(parameters), self.round)
        self.learning_rate = optimizer.param_groups[0]["lr"]
        return optimizer

    def start(self, data: ClientData, round: int, own: bool = False) -> None:
        """It is this client's turn; the weights are those it starts from, no part has begun."""
        self.data, self.round, self.own, self.steps = data, round, own, 0
        self.measured, self.noted, self.directions = {}, {}, {}
        if self.references:
            self.references.set(self.weights)

    def leave(self) -> dict[str, Any]:
        """Whose turn it is, to come back to it with ``resume``."""
        return {name: getattr(self, name) for name in _TURN}

    def resume(self, turn: Mapping[str, Any]) -> None:
        """It is the turn again of the client that ``leave`` told of; weights are not touched."""
        self._features = None
        vars(self).update(turn)  # past nn.Module's search for what kind of attribute each is

    @torch.no_grad()
    def measure(self, forward: Forward) -> dict[str, Tensors]:
        """What the parts want to know of one step: socket -> named tensors."""
        found = {name: part.measure(forward) for name, part in self.parts.items()}
        return {name: tensors for name, tensors in found.items() if tensors}

    def add_up(self, found: Mapping[str, Tensors]) -> None:
        """Add what was measured to ``measured``."""
        for name, tensors in found.items():
            sums = self.measured.setdefault(name, {})
            for key, value in tensors.items():
                sums[key] = sums[key] + value if key in sums else value

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, parameter) of everything that local training moves now."""
        # By name: where ``torch.func`` stacks clients, parameters do not say that they are trained.
        return ((n, p) for n, p in self.inventory.parameters() if n.startswith(self._trains))

    @property
    def weights(self) -> Tensors:
        """Every parameter and persistent buffer by name, sharing memory with the module."""
        return self.inventory.weights()

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
        if not weights:
            return
        own = self.weights
        for name, value in weights.items():
            own[name].copy_(value)

    def enter(self, phase: Phase) -> None:
        """Train mode, but for what the phase holds still; only what it trains may move."""
        self.train()
        if phase.still:
            for name, module in self.named_modules():
                if f"{name}.".startswith(phase.still):
                    module.eval()
        self.train_only(phase.trains)

    def train_only(self, prefixes: tuple[str, ...]) -> None:
        """Let only the parameters move whose name starts with one of ``prefixes``."""
        self._trains = prefixes
        for name, value in self.inventory.parameters():
            value.requires_grad_(name.startswith(prefixes))
