"""The client: a LightningModule that every engine, and a stock Trainer, can train."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.optim import Optimizer

from fedexp.core import results
from fedexp.core.batch_part import part_of
from fedexp.core.client_protocol import Batch, Functional, GradientAt, LocalData
from fedexp.core.forward import (
    Forward,
    Outputs,
    autocast_like,
    classify,
    cross_entropy,
    features_and_levels,
    full_precision,
    outputs,
)
from fedexp.core.frozen_copies import FrozenCopies
from fedexp.core.functional import call_in_eval_mode, functional
from fedexp.core.last_batch import LastBatch
from fedexp.core.local_model import LocalModel
from fedexp.core.messages import Message, Tensors
from fedexp.core.other_weights import MethodOf
from fedexp.core.part import Part
from fedexp.core.sockets import Personalization, Regularizer, Sockets
from fedexp.core.token_rows import by_token, scored_rows
from fedexp.core.turn import Turn

OptimizerFactory = Callable[[Iterable[nn.Parameter], int], Optimizer]
"""(parameters, round) -> a fresh local optimizer."""


class ClientModule(LocalModel):
    """The model of a client and the objective of its local training.

    A process has one such module, the resident module, and trains its clients one after another.
    For each client the process copies the client's weights into the module, ``begin_turn`` sets the
    client's data, and the ``begin`` of each part sets the part's buffers. So the objective is a
    pure function of (parameters, buffers, batch).

    Attributes:
        turn: the record of the current client's turn.
    """

    turn: Turn

    def __init__(
        self, backbone: nn.Module, sockets: Sockets[Any], optimizer: OptimizerFactory
    ) -> None:
        super().__init__(backbone, sockets.head)
        self.loss, self.regularizer = sockets.loss, sockets.regularizer
        self.personalization, self.gradient = sockets.personalization, sockets.gradient
        self.optimizer, self.parts = optimizer, sockets.by_name()
        self.frozen_copies = FrozenCopies((), backbone, sockets.head)
        self._features: tuple[Tensor, Tensor] | None = None
        self._begin_client = getattr(backbone, "begin_client", None)
        self._replacing = {
            name: part
            for name, part in self.parts.items()
            if type(part).step_weights is not Part.step_weights
        }
        self.index_weights()

    def finish_setup(self) -> None:
        """Make the frozen models that the loss needs; called once, after the parts' ``setup``."""
        self.frozen_copies = FrozenCopies(self.loss.reference_models, self.backbone, self.head)
        # A tuple, so that the module does not contain itself.
        self._with_step_weights = (MethodOf(self, self._loss_of_outputs),)
        self.index_weights()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, C] of a batch ``inputs`` [B, ...]."""
        return self.outputs(inputs).logits

    def outputs(self, inputs: Tensor) -> Outputs:
        """Features and logits of a batch ``inputs`` [B, ...]."""
        return outputs(self.backbone, self.classify, inputs)

    def logits_with(self, weights: Tensors, inputs: Tensor) -> Tensor:
        """Logits [B, C] in eval mode, with ``weights`` in place of the module's weights.

        The module itself does not change.
        """
        return call_in_eval_mode(self, weights, inputs)

    def classify(self, z: Tensor) -> Tensor:
        """Logits [B, C] of features ``z`` [B, d]: the personalization applies the head."""
        logits = self.personalization.apply_head(self.head, z)
        return results.rows(logits, z, "personalization", self.personalization, "apply_head(...)")

    @property
    def _trained_head(self) -> Callable[[Tensor], Tensor]:
        """The head itself; ``classify`` if the personalization applies the head in its own way."""
        changed = type(self.personalization).apply_head is not Personalization.apply_head
        return self.classify if changed else self.head

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the local objective on one batch, a scalar; record the step in ``turn``."""
        step, in_last_epoch = self.turn.steps, self.turn.in_last_epoch
        if not self.has_plain_gradient:
            self._step = batch, step, in_last_epoch, autocast_like(self.device.type)
        loss, forward = self.objective(batch)
        unpenalised = cross_entropy(*forward.scored) if in_last_epoch else None
        self.turn.took_step(loss.detach(), self.measure(forward), unpenalised)
        return loss

    def objective(
        self,
        batch: Batch,
        real: Tensor | None = None,
        step: Tensor | int | None = None,
        in_last_epoch: Tensor | bool | None = None,
    ) -> tuple[Tensor, Forward]:
        """The local objective, a scalar to differentiate, and its forward pass.

        A call does not change the turn's step count and metrics. ``Forward`` explains ``real`` [B],
        ``step`` and ``in_last_epoch``. By default ``step`` and ``in_last_epoch`` have the turn's
        values.
        """
        loss, forward = self.data_loss(batch, real, step, in_last_epoch)
        with full_precision(forward.z):
            penalty = self._penalty(self.trained_parameters())
        results.scalar(penalty, "regularizer", self._penalty, "forward(...)", number=True)
        return loss + penalty, forward

    def data_loss(
        self,
        batch: Batch,
        real: Tensor | None = None,
        step: Tensor | int | None = None,
        in_last_epoch: Tensor | bool | None = None,
    ) -> tuple[Tensor, Forward]:
        """The local objective without the penalty on the parameters, and its forward pass."""
        step = self.turn.steps if step is None else step
        last = self.turn.in_last_epoch if in_last_epoch is None else in_last_epoch
        if not self._replacing:
            return self._loss_of_outputs(batch, real, step, last)
        (loss_of_outputs,) = self._with_step_weights
        weights = self._step_weights(step)
        found: tuple[Tensor, Forward] = loss_of_outputs.with_weights(
            weights, batch, real, step, last
        )
        return found

    def _step_weights(self, step: Tensor | int) -> Tensors:
        """The weights that the parts put in place of the module's in this step's outputs."""
        found: Tensors = {}
        for name, part in self._replacing.items():
            parameters: Tensors = dict(self.tensor_index.parameters())
            with full_precision(next(iter(parameters.values()))):
                weights = part.step_weights(parameters, step)
            found |= results.some_weights(weights, self.weights, name, part, "step_weights(...)")
        return found

    def _loss_of_outputs(
        self,
        batch: Batch,
        real: Tensor | None,
        step: Tensor | int,
        in_last_epoch: Tensor | bool,
    ) -> tuple[Tensor, Forward]:
        """The result of ``data_loss`` with the module's weights."""
        inputs, targets = batch
        features, levels = features_and_levels(self.backbone, inputs, self.loss.levels)
        head = self._trained_head
        z, logits = classify(head, features)
        results.rows(logits, z, "head", self.head, "forward(...)")
        forward = Forward(z, logits, targets, real, levels, head, step, in_last_epoch)
        if targets.dim() > 1:
            forward = by_token(forward)
        references: dict[str, Outputs] = dict(self.frozen_copies(inputs))
        if self.loss.takes_own_model:
            references["own"] = self._own_outputs(inputs)
        with full_precision(z):
            loss, term = self.loss(forward, **references), self.personalization.term(forward)
        results.scalar(loss, "loss", self.loss, "forward(...)")
        results.scalar(term, "personalization", self.personalization, "term(...)", number=True)
        objective = loss + term
        # Under vmap no tensor says that it has a gradient, so stacks are not checked.
        if z.requires_grad and not objective.requires_grad:
            problem = "returned a tensor without a gradient; compute it from the batch"
            raise results.wrong(f"{problem}, without detach()", "loss", self.loss, "forward(...)")
        return objective, forward

    def _own_outputs(self, inputs: Tensor) -> Outputs:
        """The outputs of the client's own model (``Personalization.own_parameters``) on inputs."""
        own = self.personalization.own_parameters()
        backbone, head = (
            {n.removeprefix(start): value for n, value in own.items() if n.startswith(start)}
            for start in ("backbone.", "head.")
        )
        z = functional_call(self.backbone, backbone, (inputs,))
        return classify(lambda z: functional_call(self.head, head, (z,)), z)

    def step_gradient(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        """The gradient of a step by the rule ``gradient``; see ``LocalGradient.forward``."""
        found = self.gradient(parameters, own, gradient_at)
        return results.gradients(found, parameters, "gradient", self.gradient, "forward(...)")

    @torch.no_grad()
    def unclipped_gradient(self) -> Tensors:
        """Parameter name -> term to add to the gradient of this parameter after clipping.

        Most methods have none. See ``Regularizer.unclipped_gradient``.
        """
        found = self._penalty.unclipped_gradient(self.trained_parameters())
        whose = "regularizer", self._penalty, "unclipped_gradient(...)"
        if self.turn.steps <= 1 and found:  # the names and shapes are the same in later steps
            return results.gradients(found, dict(self.tensor_index.parameters()), *whose)
        return results.tensors(found, *whose)

    @property
    def _penalty(self) -> Regularizer:
        """The regularizer of the model that is being trained."""
        return self.personalization.penalty if self.is_personal else self.regularizer

    def on_after_backward(self) -> None:
        """Replace the gradients if ``gradient`` computes them anew; a Trainer calls this hook.

        Weights and running statistics do not change.
        """
        if self.has_plain_gradient:
            return
        batch, step, in_last_epoch, autocast = self._step
        start = {name: value.clone() for name, value in self.weights.items()}
        trained = dict(self.trained_parameters())

        def gradient_at(parameters: Tensors, part: int = 0, parts: int = 1) -> Tensors:
            self.load(start | parameters)
            inputs, targets, real = part_of(*batch, None, part, parts)
            with autocast():  # the precision of the step
                loss, _ = self.objective((inputs, targets), real, step, in_last_epoch)
            found = torch.autograd.grad(loss, list(trained.values()), materialize_grads=True)
            return dict(zip(trained, found, strict=True))

        own = {name: value.grad for name, value in trained.items() if value.grad is not None}
        taken = self.step_gradient({name: start[name] for name in trained}, own, gradient_at)
        self.load(start)
        for name, value in trained.items():
            value.grad = taken.get(name)

    @property
    def has_plain_gradient(self) -> bool:
        """Whether a step uses the whole batch's gradient at the current weights."""
        return self.is_personal or self.gradient.is_plain

    def add_unclipped_gradient(self) -> None:
        """Add ``unclipped_gradient`` to the gradients, after clipping and before the step."""
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
        """Clip, then add the unclipped terms; a Trainer calls this before each optimizer step."""
        super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)
        self.add_unclipped_gradient()

    def loss_gradient(self, batch_size: int = 1000) -> Tensors:
        """The gradient of the mean loss (name -> tensor); see ``Client.loss_gradient``."""
        parameters = dict(self.tensor_index.parameters())
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for batch in self.data.batches(batch_size, last=LastBatch(shortest=2)):  # for BatchNorm
            share = len(batch[1]) / self.data.num_samples
            _, gradient = self.batch_gradient(batch, parameters, share)
            sums = {name: total + gradient[name] for name, total in sums.items()}
        return sums

    def batch_gradient(
        self, batch: Batch, at: Mapping[str, Tensor], scale: float = 1.0
    ) -> tuple[Tensor, Tensors]:
        """The loss on one batch, and its gradient; see ``Client.batch_gradient``."""
        self.train()
        self.train_only(("",))
        parameters = dict(self.tensor_index.parameters())
        before = {
            name: weight.clone()
            for name, weight in self.weights.items()
            if name in at or name not in parameters
        }
        self.load(at)
        loss = scale * self.data_loss(batch)[0]
        wanted = [parameters[name] for name in at]
        gradients = torch.autograd.grad(loss, wanted, materialize_grads=True)
        self.load(before)
        return loss.detach(), dict(zip(at, gradients, strict=True))

    def configure_optimizers(self) -> Optimizer:
        """A fresh optimizer for this round over the parameters that are being trained."""
        return self.optimizer_for(value for _, value in self.trained_parameters())

    def optimizer_for(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """A fresh optimizer for this round over these parameters."""
        self._features = None  # training is about to change the model
        optimizer = self.optimizer(list(parameters), self.round)
        learning_rate = optimizer.param_groups[0]["lr"]
        self.turn.learning_rate = learning_rate
        if self._plain_sgd:
            (group,) = optimizer.param_groups
            return torch.optim.SGD(group["params"], lr=learning_rate, fused=True)
        return optimizer

    def begin_turn(
        self,
        data: LocalData,
        message: Message,
        personal: bool = False,
        round: int | None = None,
    ) -> None:
        """Start a client's turn, after its weights are loaded and before the parts' ``begin``.

        A backbone with buffers that differ between clients sets them in ``begin_client(client)``.

        Args:
            data: the client's training data.
            message: the message that the client received.
            personal: whether a personal model is trained.
            round: the round whose batches and learning rate are used. If None, the message's round.
        """
        self.turn = Turn(data, message, message.round if round is None else round, personal)
        self._plain_sgd = False
        if self._begin_client is not None:
            self._begin_client(data.client)
        if self.frozen_copies:
            self.frozen_copies.set(self.weights)

    def resume_turn(self, turn: Turn) -> None:
        """Continue an earlier turn; the caller then copies the client's weights into the module."""
        self._features = None
        self.turn = turn

    @property
    def data(self) -> LocalData:
        """The client's training data."""
        return self.turn.data

    @property
    def num_samples(self) -> int:
        """The number of the client's own training samples, whatever data it trains on."""
        return self.turn.num_samples

    @property
    def round(self) -> int:
        """The number of the current round, counted from 1."""
        return self.turn.round

    @property
    def is_personal(self) -> bool:
        """Whether a personal model is trained, not the shared model."""
        return self.turn.is_personal

    @property
    def learning_rate(self) -> float:
        """Learning rate of this round's local optimizer; NaN before training begins."""
        return self.turn.learning_rate

    @property
    def steps(self) -> int:
        """Gradient steps taken in this turn."""
        return self.turn.steps

    @property
    def cross_entropy(self) -> Tensor:
        """Mean cross-entropy over the steps of the last epoch, a scalar; NaN during training."""
        unknown = torch.full((), torch.nan, device=self.device)
        return self.turn.fitted.get("cross_entropy", unknown)

    def measured(self, part: object) -> Tensors:
        """The results of ``part.measure``, summed over the steps of this turn."""
        socket = next(name for name, each in self.parts.items() if each is part)
        return self.turn.measured.get(socket, {})

    def record(self, values: Mapping[str, float]) -> None:
        """Log these named values; the log shows their means over the clients."""
        self.turn.logged.update(values)

    def compare(self, name: str, step: Tensors) -> None:
        """Keep ``step`` for the measure ``StepCosine``; see ``Client.compare``."""
        self.turn.directions[name] = step

    def train_on(self, data: LocalData) -> None:
        """Use ``data`` as the training data in this turn."""
        self._features = None  # they are of the other data
        self.turn.data = data

    def global_model(self) -> Functional:
        """The received global model as a function; see ``core.functional``."""
        return functional(self, self.turn.message)

    @torch.no_grad()
    def measure(self, forward: Forward) -> dict[str, Tensors]:
        """The results of the parts' ``measure`` in one step: socket -> named tensors."""
        with full_precision(forward.z):  # 16 bits do not count beyond 256
            measured = {
                name: results.tensors(part.measure(forward), name, part, "measure(...)")
                for name, part in self.parts.items()
                if type(part).measure is not Part.measure
            }
        return {name: tensors for name, tensors in measured.items() if tensors}

    def features(
        self, batch_size: int = 1000, augment: Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features [n, d] and labels [n] of the training data; see ``Client.features``."""
        if augment is not None and self.data.is_augmented:
            return self._compute_features(self.data.batches(batch_size, augment))
        if self._features is None:
            self._features = self._compute_features(self.data.batches(batch_size))
        return self._features

    @torch.no_grad()
    def _compute_features(self, batches: Iterable[Batch]) -> tuple[Tensor, Tensor]:
        """Features z [n, d] and labels [n] of the n samples in all batches, in eval mode."""
        self.eval()
        rows = (scored_rows(targets, self.backbone(inputs)) for inputs, targets in batches)
        labels, z = zip(*rows, strict=True)
        return torch.cat(z), torch.cat(labels)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy ``weights`` into the module in place; weights of other names do not change."""
        self._features = None
        super().load(weights)
