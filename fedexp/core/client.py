"""The client: a LightningModule that every engine, and a stock Trainer, can train."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Self

import torch
from lightning import LightningModule
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from fedexp.core.client_protocol import Batch, LocalData
from fedexp.core.fixed_weights import fixed_buffers, fixed_layers, fixed_parameters
from fedexp.core.forward import (
    Forward,
    Outputs,
    classify,
    cross_entropy,
    features_and_levels,
    full_precision,
    outputs,
)
from fedexp.core.frozen_copies import FrozenCopies
from fedexp.core.messages import Tensors
from fedexp.core.part import Part
from fedexp.core.sockets import Head, Loss, Personalization, Phase, Regularizer
from fedexp.core.tensor_index import TensorIndex
from fedexp.core.token_rows import by_token, scored_rows

OptimizerFactory = Callable[[Iterable[nn.Parameter], int], Optimizer]
"""(parameters, round) -> a fresh local optimizer."""

_TURN_STATE = ("data", "round", "is_personal", "steps", "measured", "logged", "directions")


class ClientModule(LightningModule):
    """Backbone, head, loss, regularizer and personalization: the objective of local training.

    A process has one such module, the resident module, for all clients in turn: weights are copied
    in place, ``begin_turn`` sets the client, and the parts' ``begin`` sets their buffers. So the
    objective is a pure function of (parameters, buffers, batch).

    A parameter without ``requires_grad`` at construction is fixed, see ``core.fixed_weights``: it
    is no part of ``weights``.
    """

    data: LocalData
    round: int
    is_personal: bool  # whether a personal model is trained, not the shared one
    learning_rate: float  # of this round's local optimizer
    steps: int  # gradient steps taken in this round
    cross_entropy: Tensor  # mean over the last epoch's steps, set before the parts report
    measured: dict[str, Tensors]  # socket -> what its part measures, summed over the steps
    cross_entropies: list[Tensor] | None  # of each step of the last epoch; None before it
    logged: dict[str, float]  # name -> value, set by parts for the log
    directions: dict[str, Tensors]  # name -> a step in parameter space, see ``Update``

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
        self.frozen_copies = FrozenCopies((), backbone, head)
        self._trainable: tuple[str, ...] = ("",)
        self._plain_sgd = False
        self._derived = {f"head.{name}" for name in head.derived}
        self._features: tuple[Tensor, Tensor] | None = None
        self._begin_client = getattr(backbone, "begin_client", None)
        self._fixed_layers = tuple(fixed_layers(backbone).values())
        self._fixed = fixed_parameters(self) | {f"backbone.{n}" for n in fixed_buffers(backbone)}
        self.tensor_index = TensorIndex(self, self._fixed)

    def finish_setup(self) -> None:
        """Call once, after the parts' ``setup``: makes the frozen copies that the loss needs."""
        self.frozen_copies = FrozenCopies(self.loss.reference_models, self.backbone, self.head)
        self.tensor_index = TensorIndex(self, self._fixed)

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
        in_last_epoch = self.cross_entropies is not None
        self.accumulate(self.measure(forward, in_last_epoch))
        if self.cross_entropies is not None:
            found = cross_entropy(forward.logits, forward.targets, forward.real)
            self.cross_entropies.append(found)
        return loss

    def objective(
        self, batch: Batch, real: Tensor | None = None, step: Tensor | None = None
    ) -> tuple[Tensor, Forward]:
        """The local objective and the forward pass that it comes from; changes nothing.

        ``real`` [B] and ``step`` are as in ``Forward``; the step is ``steps`` if it is not given.
        """
        loss, forward = self.data_loss(batch, real, step)
        with full_precision(forward.z):
            pull = self.personalization.pull if self.is_personal else self.regularizer
            penalty: Tensor | float = pull(self.trained_parameters())
        return loss + penalty, forward

    def data_loss(
        self, batch: Batch, real: Tensor | None = None, step: Tensor | None = None
    ) -> tuple[Tensor, Forward]:
        """The local objective without the penalty on the parameters, and its forward pass."""
        inputs, targets = batch
        found, levels = features_and_levels(self.backbone, inputs, self.loss.levels)
        z, logits = classify(self.head, found)
        steps = self.steps if step is None else step
        forward = Forward(z, logits, targets, real, levels, self.head, steps)
        if targets.dim() > 1:
            forward = by_token(forward)
        references = self.frozen_copies(inputs)
        with full_precision(z):
            loss: Tensor = self.loss(forward, **references) + self.personalization.term(forward)
        return loss, forward

    @torch.no_grad()
    def unclipped_gradient(self) -> Tensors:
        """Name -> what is added to a parameter's gradient after clipping; most parts add nothing.

        See ``Regularizer.unclipped_gradient``.
        """
        part = self.personalization if self.is_personal else self.regularizer
        return part.unclipped_gradient(self.trained_parameters())

    def add_unclipped_gradient(self) -> None:
        """Add ``unclipped_gradient`` to the gradients, between clipping and the optimizer."""
        added = self.unclipped_gradient()
        for name, parameter in self.trained_parameters() if added else ():
            if name in added:
                own = parameter.grad
                parameter.grad = added[name] if own is None else own + added[name]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip, then add what is not clipped; a Trainer calls this before each optimizer step."""
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.add_unclipped_gradient()

    def loss_gradient(self, batch_size: int = 1000) -> Tensors:
        """Name -> gradient of the mean loss over this client's training data, every parameter.

        The loss is the objective without the penalty on the parameters; the data are not augmented.
        In train mode, like the gradients of local training: BatchNorm normalises with the
        statistics of each batch and dropout is active. Weights and running statistics stay as they
        are.
        """
        self.train()
        self.train_only(("",))
        names, parameters = zip(*self.tensor_index.parameters(), strict=True)
        buffers = {name: w.clone() for name, w in self.weights.items() if name not in names}
        sums = [torch.zeros_like(parameter) for parameter in parameters]
        if self.data.num_samples % batch_size == 1:
            batch_size -= 1  # BatchNorm needs two samples
        for batch in self.data.batches(batch_size):
            share = len(batch[1]) / self.data.num_samples
            loss = share * self.data_loss(batch)[0]
            found = torch.autograd.grad(loss, parameters, materialize_grads=True)
            sums = [total + gradient for total, gradient in zip(sums, found, strict=True)]
        self.load(buffers)
        return dict(zip(names, sums, strict=True))

    def configure_optimizers(self) -> Optimizer:
        """A fresh optimizer for this round over the parameters that are being trained."""
        return self.optimizer_for(value for _, value in self.trained_parameters())

    def optimizer_for(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A fresh optimizer for this round over these parameters."""
        self._features = None  # training is about to change the model
        optimizer = self.optimizer(list(parameters), self.round)
        self.learning_rate = optimizer.param_groups[0]["lr"]
        if self._plain_sgd:
            (group,) = optimizer.param_groups
            return torch.optim.SGD(group["params"], lr=self.learning_rate, fused=True)
        return optimizer

    def begin_turn(self, data: LocalData, round: int, personal: bool = False) -> None:
        """Start a client's local training; its weights are loaded, its parts have not begun.

        A backbone that differs between clients has a method ``begin_client(client)`` for its
        buffers.
        """
        self.data, self.round, self.is_personal, self.steps = data, round, personal, 0
        self._plain_sgd = False
        self.measured, self.logged, self.directions = {}, {}, {}
        self.cross_entropies = None
        if self._begin_client is not None:
            self._begin_client(data.client)
        if self.frozen_copies:
            self.frozen_copies.set(self.weights)

    def turn_state(self) -> dict[str, Any]:
        """The client and the state of its local training but for tensors of the model."""
        return {name: getattr(self, name) for name in _TURN_STATE}

    def restore_turn(self, turn: Mapping[str, Any]) -> None:
        """Continue the local training that ``turn_state`` returned; weights do not change."""
        self._features = None
        vars(self).update(turn)  # __setattr__ of nn.Module took a tenth of a small client's time

    @torch.no_grad()
    def measure(self, forward: Forward, in_last_epoch: bool) -> dict[str, Tensors]:
        """What the parts measure in one step: socket -> named tensors."""
        found = {
            name: part.measure(forward)
            for name, part in self.parts.items()
            if in_last_epoch or not part.measures_last_epoch
        }
        return {name: tensors for name, tensors in found.items() if tensors}

    def accumulate(self, found: Mapping[str, Tensors]) -> None:
        """Add what was measured to ``measured``."""
        for name, tensors in found.items():
            sums = self.measured.setdefault(name, {})
            for key, value in tensors.items():
                sums[key] = sums[key] + value if key in sums else value

    def trained_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """(name, parameter) of everything that the current phase trains."""
        # By name: under ``torch.func`` parameters have no ``requires_grad`` of their own.
        return ((n, p) for n, p in self.tensor_index.parameters() if n.startswith(self._trainable))

    def logits_with(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """Logits [B, C] in eval mode with ``weights`` in place of the model's own.

        The module is the same before and after.
        """
        training = self.training
        self.eval()
        try:
            logits: Tensor = functional_call(self, weights, (inputs,))
        finally:
            self.train(training)
        return logits

    @property
    def weights(self) -> Tensors:
        """Every parameter and persistent buffer by name, sharing memory with the module.

        Without those that are fixed.
        """
        return self.tensor_index.weights()

    @property
    def stored_parameters(self) -> int:
        """Numbers that local training holds: the model, frozen copies, the parts' buffers."""
        held = chain(self.tensor_index.everything(), self.tensor_index.fixed())
        return sum(value.numel() for _, value in held)

    def is_sent(self, name: str) -> bool:
        """Whether this weight may be sent: every weight except the head's derived buffers."""
        return name not in self._derived

    def features(
        self, batch_size: int = 1000, augment: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features z [n, d] and labels [n] of this client's training data under its current model.

        Where each token has a target, n counts tokens. One pass in eval mode; that without
        augmentation is shared by all parts that report after training. With a generator the inputs
        are augmented with draws of it, if training augments.
        """
        if augment is not None and self.data.is_augmented:
            return self._features_of(self.data.batches(batch_size, augment))
        if self._features is None:
            self._features = self._features_of(self.data.batches(batch_size))
        return self._features

    @torch.no_grad()
    def _features_of(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """z [n, d] and labels [n] of all batches, in eval mode."""
        self.eval()
        found = (scored_rows(targets, self.backbone(inputs)) for inputs, targets in batches)
        labels, z = zip(*found, strict=True)
        return torch.cat(z), torch.cat(labels)

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` into the module in place; names that are not given stay as they are."""
        self._features = None
        if not weights:
            return
        current = self.weights
        for name, value in weights.items():
            current[name].copy_(value)

    def train(self, mode: bool = True) -> Self:
        """Train mode, except for layers with fixed buffers."""
        super().train(mode)
        for layer in self._fixed_layers:
            layer.training = False
        return self

    def has_fixed_buffers(self, layer: nn.Module) -> bool:
        """Whether ``layer`` has buffers that no client changes, and so is always in eval mode."""
        return any(layer is each for each in self._fixed_layers)

    def begin_phase(self, phase: Phase) -> None:
        """Train mode, except for the modules that the phase keeps in eval mode."""
        self.train()
        if phase.eval_mode:
            for name, module in self.named_modules():
                if f"{name}.".startswith(phase.eval_mode):
                    module.eval()
        self._plain_sgd = phase.plain_sgd
        self.train_only(phase.trainable)

    def train_only(self, prefixes: tuple[str, ...]) -> None:
        """Train only the parameters whose name starts with one of ``prefixes``."""
        self._trainable = prefixes
        for name, value in self.tensor_index.parameters():
            value.requires_grad_(name.startswith(prefixes))
