"""The vectorized engine: one training step for many stacked clients at once."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from operator import le
from types import MappingProxyType
from typing import Literal, cast

import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.func import functional_call

from fedexp.config.compatibility.traits import (
    BATCH_NORM,
    DIFFERENT_NETWORKS,
    DROPOUT,
    ELEMENTWISE,
    RECURRENT,
    STOCHASTIC_DEPTH,
)
from fedexp.core.batch_part import part_of
from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory
from fedexp.core.sockets import Phase
from fedexp.core.turn import Turn
from fedexp.data.federated import ClientData
from fedexp.engines.base import Engine
from fedexp.engines.footprint import clients_that_fit
from fedexp.engines.kept_optimizer import PERSONAL_MODEL, SHARED_MODEL
from fedexp.engines.resources import Resources
from fedexp.engines.stack import Stack, StackedMethod
from fedexp.engines.stacked_batches import StackedBatches
from fedexp.engines.stacked_optimizer import PerClientOptimizer, StackedOptimizer
from fedexp.engines.stacked_record import StackedRecord
from fedexp.engines.stacking_errors import Attributes, stacking
from fedexp.engines.turn import Trained, end_turns


class Vectorized(Engine):
    """Trains clients in stacks: one training step serves all clients of a stack.

    The clients of a stack are sorted by their number of steps, the largest first. So the clients
    that finish early are the last rows of the stack, and later steps leave these rows out. One
    order must fit all phases of training: two clients are put into different stacks if each of them
    has more steps than the other in some phase. Each client has its own batches, gradient norm and
    optimizer state. The weights equal the weights of ``engine=serial``, except for rounding and the
    random numbers of layers such as dropout. The optimizer must be elementwise, like SGD and Adam.

    The constructor calls the method ``prepare_for_vmap()`` of every layer that has one.

    Args:
        resources: the objects that every engine works with.
        clients_per_chunk: clients in a stack; None takes as many as fit (``clients_that_fit``).
    """

    needs = MappingProxyType(
        {
            ELEMENTWISE: "optimizer: engine=vectorized needs one that updates each element by "
            "itself, such as sgd, adam, adamw or rmsprop; use one of these or engine=serial"
        }
    )
    forbids = MappingProxyType(
        {
            DIFFERENT_NETWORKS: "engine=vectorized: this {other} has different networks, which "
            "cannot be stacked; use engine=serial",
            BATCH_NORM: "engine=vectorized: {other} is BatchNorm, whose running statistics cannot "
            "be stacked; use engine=serial, or GroupNorm (model.norm=group where there is one)",
            STOCHASTIC_DEPTH: "engine=vectorized: {other} is StochasticDepth, whose random numbers "
            "cannot be drawn for a stack; use engine=serial, or another model",
            RECURRENT: "engine=vectorized: {other} is a recurrent layer of PyTorch, which cannot "
            "be stacked; use engine=serial, or the LSTM of model=char_lstm",
        }
    )
    discourages = MappingProxyType(
        {
            DROPOUT: "engine=vectorized: {other} is dropout, whose random numbers in a stack "
            "depend on its clients, so that the weights differ from those of engine=serial by "
            "more than rounding"
        }
    )
    # A stack holds the weights in PyTorch's default layout, whatever the layout of the module.
    unread = MappingProxyType({"engine.channels_last": "in training with engine=vectorized"})

    def __init__(self, resources: Resources, clients_per_chunk: PositiveInt | None) -> None:
        super().__init__(resources)
        for layer in resources.module.modules():
            if prepare := getattr(layer, "prepare_for_vmap", None):
                prepare()
        self._clients_per_chunk = clients_per_chunk
        self._step = StackedMethod(resources.module, self._objective)
        self._elsewhere = StackedMethod(resources.module, self._gradient_elsewhere)

    def compile(self, mode: Literal["default", "reduce-overhead"]) -> None:
        """Compile the training step of a stack with ``torch.compile`` in this mode."""
        self._step.compile_rows(mode)

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Train one stack after another."""
        self.resources.load_global(message)  # sets the shapes of this round's buffers
        draws = Counter(cohort)
        where = f"in round {message.round}"
        steps = {client: self._local_steps(client, message) for client in draws}
        for clients in self._chunks(steps, message):
            with noted(f"training clients {clients} {where}", self._components):
                updates = self._train_stack(clients, draws, message)
            yield from updates

    def tuned(
        self, clients: Sequence[int], size: int, message: Message
    ) -> Iterator[tuple[Sequence[int], Stack]]:
        """Like ``Engine.tuned``, but ``clients_per_chunk`` limits a group instead of ``size``."""
        tuning, where = self.tuning_phases(), f"after round {message.round}"
        data = self.resources.data.clients
        steps = {client: self._steps(data[client], message.round, tuning) for client in clients}
        for group in self._chunks(steps, message):
            stack = self.begin_all(group, lambda k: self.begin_tuning(k, message), where)
            if tuning:
                with noted(f"tuning the models of clients {group} {where}", self._components):
                    self._fit_sorted(stack, lambda turn: tuning)
            yield [turn.data.client for turn in stack.turns], stack

    def begin_all(self, clients: Sequence[int], begin: Callable[[int], object], when: str) -> Stack:
        """Like ``Engine.begin_all``; refuses parts that keep a client's tensor in an attribute."""
        attributes = Attributes(self._components, self.resources.module.device)

        def begin_one(client: int) -> None:
            begin(client)
            attributes.compare()

        stack = super().begin_all(clients, begin_one, when)
        attributes.check()
        return stack

    def _local_steps(self, client: int, message: Message) -> tuple[int, ...]:
        """The client's steps in each phase of its local training."""
        data, round = self.training_data(client, message), message.round
        epochs = self.resources.local_epochs(data, round)
        personalization = self.resources.personalization
        phases = [*personalization.phases(epochs), *personalization.personal_phases(epochs)]
        return self._steps(data, round, phases)

    def _steps(self, data: ClientData, round: int, phases: Sequence[Phase]) -> tuple[int, ...]:
        """The client's steps in each phase; without phases, its number of batches in an epoch."""
        batches = self.resources.local_batches(data, round)
        return tuple(batches.steps_in(each.epochs) for each in phases) or (len(batches),)

    def _chunks(
        self, steps: Mapping[int, tuple[int, ...]], message: Message
    ) -> Iterator[Sequence[int]]:
        """Yield groups of at most ``clients_per_chunk``, the clients with the most steps first.

        ``steps``: client -> its steps in each phase.
        """
        for group in longest_first(steps):
            if self._clients_per_chunk is None:
                doing = f"trying a step of client {group[0]} in round {message.round}"
                with noted(doing, self._components), stacking(self._components):
                    self._clients_per_chunk = clients_that_fit(self.resources, group[0], message)
            for start in range(0, len(group), self._clients_per_chunk):
                yield group[start : start + self._clients_per_chunk]

    def _train_stack(
        self, clients: Sequence[int], draws: Mapping[int, int], message: Message
    ) -> list[Update]:
        """Train the shared models and, if the method has them, the separate models."""
        personalization, trained = self.resources.personalization, []
        where = f"in round {message.round}"
        with ExitStack() as open_states:
            states = {c: open_states.enter_context(self.resources.store.open(c)) for c in clients}
            before = {client: state.copy() for client, state in states.items()}
            stack = self.begin_all(clients, lambda c: self.begin(c, message, states[c]), where)
            epochs = {turn.data.client: self.epochs(turn) for turn in stack.turns}
            self._fit_sorted(
                stack,
                lambda turn: personalization.phases(epochs[turn.data.client]),
                lambda client: self.kept_optimizer(SHARED_MODEL, states[client]),
            )
            for row, client in enumerate(turn.data.client for turn in stack.turns):
                stack.load_row(row)
                with noted(f"finishing the turn of client {client} {where}", self._components):
                    update, state = self.finish(states[client], draws[client]), states[client]
                trained.append(Trained(update, stack.turns[row], state, before[client]))
            if personalization.personal_phases(epochs[clients[0]]):
                stack = self.begin_all(
                    clients, lambda c: self.begin_personal(c, message, states[c]), where
                )
                self._fit_sorted(
                    stack,
                    lambda turn: personalization.personal_phases(epochs[turn.data.client]),
                    lambda client: self.kept_optimizer(PERSONAL_MODEL, states[client]),
                )
                for row, turn in enumerate(stack.turns):
                    stack.load_row(row)
                    self.finish_personal(states[turn.data.client])
            return end_turns(trained, self.resources)

    def _fit_sorted(
        self,
        stack: Stack,
        phases_of: Callable[[Turn], Sequence[Phase]],
        kept_of: Callable[[int], Memory | None] = lambda client: None,
    ) -> None:
        """Train all rows, after sorting them by their steps.

        The rows are in another order before only if a part has called ``train_on`` in ``begin``
        with another number of samples.

        Args:
            stack: the clients.
            phases_of: a client's turn -> its phases.
            kept_of: client -> the optimizer state to start from; see ``_fit_all``.
        """
        phases = [phases_of(turn) for turn in stack.turns]
        steps = {
            row: self._steps(cast(ClientData, turn.data), turn.round, phases[row])
            for row, turn in enumerate(stack.turns)
        }
        groups = longest_first(steps)
        stack.sort_rows(list(chain(*groups)))
        start = 0
        for group in groups:
            part = stack.part(slice(start, start + len(group)))
            kept = [kept_of(turn.data.client) for turn in part.turns]
            self._fit_all(part, [phases[row] for row in group], kept)
            start += len(group)

    def _fit_all(
        self, stack: Stack, phases: Sequence[Sequence[Phase]], kept: Sequence[Memory | None]
    ) -> None:
        """Train all rows; their turns record the steps.

        Args:
            stack: the clients.
            phases: each row's phases; the rows may differ only in ``Phase.epochs``.
            kept: each row's optimizer state to start from; it is updated after training. With None
                each phase starts with fresh optimizers.
        """
        local, module = self.resources.local, self.resources.module
        memories = [each for each in kept if each is not None]
        batches = [self.batches_of(turn) for turn in stack.turns]
        record = StackedRecord(stack.turns, module.device)
        for number, of_rows in enumerate(zip(*phases, strict=True), start=1):
            module.begin_phase(of_rows[0])
            lengths = [b.steps_in(row.epochs) for b, row in zip(batches, of_rows, strict=True)]
            stacked = StackedBatches(batches, lengths)
            grad_clip = local.grad_clip if of_rows[0].clipped else None
            optimizer = (
                PerClientOptimizer(stack, grad_clip, memories)
                if memories
                else StackedOptimizer(stack, grad_clip)
            )
            self._fit_phase_of_all(stacked, optimizer, record, number == len(phases[0]))
            samples = [b.samples_in(steps) for b, steps in zip(batches, lengths, strict=True)]
            record.end_phase(lengths, samples)
            if isinstance(optimizer, PerClientOptimizer):
                for memory, state in zip(memories, optimizer.states(), strict=True):
                    memory.update(state)
        record.finish(module.learning_rate, stacked.steps_of_last_epoch)

    def _fit_phase_of_all(
        self,
        stacked: StackedBatches,
        optimizer: StackedOptimizer,
        record: StackedRecord,
        is_last_phase: bool,
    ) -> None:
        """Train all rows for one phase."""
        module, fabric, before = self.resources.module, self.resources.fabric, record.steps
        for step in range(len(stacked)):
            rows = optimizer.narrow(stacked.rows(step))
            is_last = is_last_phase and stacked.has_last_epoch(step)
            last = stacked.in_last_epoch(step) & is_last
            with fabric.autocast(), stacking(self._components):
                inputs, targets, real = stacked.batch(step)
                batch = (inputs, targets, real, before[: len(inputs)] + step, last)
                losses, scored, measured, unclipped = self._step.rows(rows, *batch)
            gradients = optimizer.gradients(losses)
            if not module.has_plain_gradient:
                with torch.no_grad(), stacking(self._components):
                    gradients = self._elsewhere.rows(rows, gradients, *batch)
            optimizer.step(gradients, unclipped)
            record.add(losses, measured)
            if is_last:
                logits, labels, is_real = scored
                record.add_cross_entropies(logits, labels, is_real, last)

    def _objective(
        self, inputs: Tensor, targets: Tensor, real: Tensor, step: Tensor, in_last_epoch: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...], dict[str, Tensors], Tensors]:
        """Compute the loss of one client, and what else a step needs.

        Returns (loss, logits, targets and real rows, measurements, unclipped gradient terms).
        """
        module = self.resources.module
        loss, forward = module.objective((inputs, targets), real, step, in_last_epoch)
        return loss, forward.scored, module.measure(forward), module.unclipped_gradient()

    def _gradient_elsewhere(
        self, own: Tensors, inputs: Tensor, targets: Tensor, real: Tensor, *turn: Tensor
    ) -> Tensors:
        """The gradients that ``LocalGradient`` uses in place of ``own``, for one client.

        The remaining arguments are the arguments of ``_objective``.
        """
        module, fabric = self.resources.module, self.resources.fabric

        def gradient_at(parameters: Tensors, part: int = 0, parts: int = 1) -> Tensors:
            samples = part_of(inputs, targets, real, part, parts)

            def loss(values: Tensors) -> Tensor:
                named = {f"module.{name}": value for name, value in values.items()}
                with fabric.autocast():  # not in the backward pass
                    result: Tensor = functional_call(self._step, named, (*samples, *turn))[0]
                return result

            gradients: Tensors = torch.func.grad(loss)(parameters)
            return gradients

        taken: Tensors = module.step_gradient(dict(module.trained_parameters()), own, gradient_at)
        return taken


def longest_first(steps: Mapping[int, tuple[int, ...]]) -> list[list[int]]:
    """Divide clients into groups, each sorted by the number of steps, the largest first.

    In a group, no phase has more steps at a client than at the client before.

    Args:
        steps: client -> its steps in each phase. With one phase there is one group.
    """
    groups: list[list[int]] = []
    for client in sorted(steps, key=lambda each: ([-count for count in steps[each]], each)):
        for group in groups:
            if all(map(le, steps[client], steps[group[-1]])):
                group.append(client)
                break
        else:
            groups.append([client])
    return groups
