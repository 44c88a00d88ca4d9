"""Clients stacked: the same training step for many of them at once."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import RNNBase
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.ops import StochasticDepth

from fedexp.core.forward import cross_entropy
from fedexp.core.local_optimizer import is_elementwise
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory
from fedexp.core.sockets import Phase
from fedexp.core.transfer import to_device
from fedexp.data.federated import ClientData
from fedexp.engines.base import Engine
from fedexp.engines.footprint import clients_that_fit
from fedexp.engines.kept_optimizer import PERSONAL_MODEL, SHARED_MODEL
from fedexp.engines.predictions import Predictions, Select
from fedexp.engines.resources import Resources
from fedexp.engines.schedule import Schedule
from fedexp.engines.stack import Stack, StackedMethod
from fedexp.engines.stacked_optimizer import PerClientOptimizer, StackedOptimizer
from fedexp.engines.turn import Turn, end_turns
from fedexp.errors import InputError
from fedexp.state.client_state import ClientState


class Vectorized(Engine):
    """Trains clients in stacks, each sorted by the number of steps, the most first.

    So clients that have finished drop off the end of the stack. Each client has its own batches,
    gradient norm and optimizer state, and the weights are those of ``serial`` except for rounding
    and for the random numbers of layers such as dropout. The optimizer must be elementwise, as SGD
    and Adam are.

    Args:
        resources: what it works with.
        clients_per_chunk: clients in a stack; None takes as many as fit (``clients_that_fit``).

    ``prepare_for_vmap()`` of a layer, if it has that method, is called once.

    Raises:
        InputError: the model keeps running statistics, which a stack would mix, drops whole layers
            at random or has a recurrent layer of PyTorch; or the optimizer does not work on each
            element by itself.
    """

    def __init__(self, resources: Resources, clients_per_chunk: PositiveInt | None) -> None:
        super().__init__(resources)
        for name, layer in resources.module.named_modules():
            if isinstance(layer, _BatchNorm) and not resources.module.has_fixed_buffers(layer):
                raise InputError(
                    f"engine=vectorized: {name} is BatchNorm, whose running statistics cannot be "
                    "stacked; use engine=serial, or GroupNorm (model.norm=group where there is one)"
                )
            if _drops_layers(layer):
                raise InputError(
                    f"engine=vectorized: {name} is StochasticDepth, whose random numbers cannot be "
                    "drawn for a stack; use engine=serial, or another model"
                )
            if isinstance(layer, RNNBase):
                raise InputError(
                    f"engine=vectorized: {name} is {type(layer).__name__} of PyTorch, which cannot "
                    "be stacked; use engine=serial, or the LSTM of model=char_lstm"
                )
            if hasattr(layer, "prepare_for_vmap"):
                layer.prepare_for_vmap()
        if not is_elementwise(resources.module.optimizer):
            raise InputError(
                "optimizer: engine=vectorized needs one that updates each element by itself, such "
                "as sgd, adam, adamw or rmsprop; use one of these or engine=serial"
            )
        self._clients_per_chunk = clients_per_chunk
        self._step = StackedMethod(resources.module, self._objective)

    def compile(self) -> None:
        """Compile the step of a stack with ``torch.compile``."""
        self._step.compile_rows()

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Train one stack after another."""
        self.resources.store.begin_round()
        self.resources.load_global(message)  # a stack has the shapes of this round's buffers
        draws = Counter(cohort)
        clients: Sequence[int] = list(draws)
        try:
            for clients in self._chunks(draws, message, self.training_data):
                yield from self._train_stack(clients, draws, message)
        except Exception as error:
            error.add_note(f"while training clients {clients} in round {message.round}")
            raise

    def evaluate_personal(
        self, message: Message, tune: bool = True, select: Select = lambda client: None
    ) -> Iterator[tuple[int, Predictions]]:
        """As ``Engine.evaluate_personal``; models are tuned in stacks, too."""
        tuning = self.resources.personalization.tuning()
        if not (tuning and tune):
            yield from super().evaluate_personal(message, tune, select)
            return
        self.resources.load_global(message)  # the parts receive the round's message

        def data(client: int, _: Message) -> ClientData:
            return self.resources.data.clients[client]

        for clients in self._chunks(self.resources.store.clients_with_model, message, data):
            stack = self.begin_all(clients, lambda c: self.begin_tuning(c, message))
            self._fit_all(stack, tuning)
            selections = [select(data(client, message)) for client in clients]
            yield from self.scorer.score_stack(stack, clients, selections)

    def _chunks(
        self,
        clients: Iterable[int],
        message: Message,
        data: Callable[[int, Message], ClientData],
    ) -> Iterator[Sequence[int]]:
        """Groups of at most ``clients_per_chunk``, the clients with the most steps first."""
        batch_size = self.resources.local.batch_size

        def order(client: int) -> tuple[int, int]:
            return -len(data(client, message).local_batches(message.round, batch_size)), client

        longest_first = sorted(clients, key=order)
        if longest_first and self._clients_per_chunk is None:
            self._clients_per_chunk = clients_that_fit(self.resources, longest_first[0], message)
        size = self._clients_per_chunk or 1
        for start in range(0, len(longest_first), size):
            yield longest_first[start : start + size]

    def _train_stack(
        self, clients: Sequence[int], draws: Mapping[int, int], message: Message
    ) -> list[Update]:
        """Train the shared models, and then the clients' separate models if they have any."""
        personalization, epochs = self.resources.personalization, self.resources.local.epochs
        turns = []
        with ExitStack() as open_states:
            states = {c: open_states.enter_context(self.resources.store.open(c)) for c in clients}
            before = {client: state.copy() for client, state in states.items()}
            stack = self.begin_all(clients, lambda c: self.begin(c, message, states[c]))
            kept = self._kept_optimizers(SHARED_MODEL, states)
            fitted = self._fit_all(stack, personalization.phases(epochs), kept)
            for row, client in enumerate(clients):
                stack.load_row(row)
                own = {name: values[row] for name, values in fitted.items()}
                update = self.finish(states[client], own, draws[client])
                turns.append(Turn(update, own, states[client], before[client]))
            if personal_phases := personalization.personal_phases(epochs):
                stack = self.begin_all(
                    clients, lambda c: self.begin_personal(c, message, states[c])
                )
                self._fit_all(stack, personal_phases, self._kept_optimizers(PERSONAL_MODEL, states))
                for row, client in enumerate(clients):
                    stack.load_row(row)
                    self.finish_personal(states[client])
            return end_turns(turns, message, self.resources)

    def _kept_optimizers(
        self, model: str, states: Mapping[int, ClientState]
    ) -> list[Memory] | None:
        """``kept_optimizer`` of each client."""
        if not self.resources.local.keep_optimizer:
            return None
        return [state.memory(model) for state in states.values()]

    def _fit_all(
        self, stack: Stack, phases: Sequence[Phase], kept: Sequence[Memory] | None = None
    ) -> Tensors:
        """Local training of all rows; returns what ``fit`` does, [K] instead of scalars.

        ``kept`` has each row's kept state of the optimizer, which the state after training updates.
        """
        local, module = self.resources.local, self.resources.module
        turns = stack.turns
        batches = [turn["data"].local_batches(turn["round"], local.batch_size) for turn in turns]
        totals = torch.zeros(len(turns), device=module.device)
        cross_entropies = torch.zeros(len(turns), device=module.device)
        sums: dict[str, Tensors] = {}
        for phase in phases:
            module.begin_phase(phase)
            taken = to_device(torch.tensor([turn["steps"] for turn in turns]), module.device)
            schedule = Schedule(batches, phase.epochs)
            grad_clip = local.grad_clip if phase.clipped else None
            optimizer = (
                StackedOptimizer(stack, grad_clip)
                if kept is None
                else PerClientOptimizer(stack, grad_clip, kept)
            )
            for step in range(len(schedule)):
                rows = optimizer.narrow(schedule.rows(step))
                with self.resources.fabric.autocast():
                    inputs, targets, real = schedule.batch(step)
                    numbers = taken[: len(inputs)] + step
                    losses, scored, measured, unclipped = self._step.rows(
                        rows, inputs, targets, real, numbers
                    )
                optimizer.step(losses, unclipped)
                totals[: len(losses)] += losses.detach()
                in_last_epoch = schedule.in_last_epoch(step) if phase is phases[-1] else None
                _add_up(sums, self._due(measured, in_last_epoch), len(turns))
                if in_last_epoch is not None:
                    in_step = vmap(cross_entropy)(*scored)
                    cross_entropies[: len(losses)] += in_step.where(in_last_epoch, 0)
            for turn, steps in zip(turns, schedule.steps, strict=True):
                turn["steps"] += steps
            if kept is not None and isinstance(optimizer, PerClientOptimizer):
                for memory, state in zip(kept, optimizer.states(), strict=True):
                    memory.update(state)
        for row, turn in enumerate(turns):
            turn["measured"] = {
                socket: {name: value[row].clone() for name, value in tensors.items()}
                for socket, tensors in sums.items()
            }
        counts = [[turn["steps"] for turn in turns], [len(each) for each in batches]]
        all_steps, steps_of_last_epoch = to_device(torch.tensor(counts).float(), module.device)
        return {"loss": totals / all_steps, "cross_entropy": cross_entropies / steps_of_last_epoch}

    def _objective(
        self, inputs: Tensor, targets: Tensor, real: Tensor, step: Tensor
    ) -> tuple[Tensor, tuple[Tensor | None, ...], dict[str, Tensors], Tensors]:
        """Loss, arguments of ``cross_entropy``, what parts measure, and the unclipped gradient."""
        module = self.resources.module
        loss, forward = module.objective((inputs, targets), real, step)
        scored = forward.logits.detach(), forward.targets, forward.real
        measured = module.measure(forward, in_last_epoch=True)  # ``_due`` drops what is not
        return loss, scored, measured, module.unclipped_gradient()

    def _due(
        self, measured: Mapping[str, Tensors], in_last_epoch: Tensor | None
    ) -> dict[str, Tensors]:
        """``measured`` [A, ...], but zero in rows whose part measures their last epoch alone.

        ``in_last_epoch`` [A] is that of ``Schedule``.
        """
        due = dict(measured)
        for socket, tensors in measured.items():
            if self.resources.parts[socket].measures_last_epoch:
                del due[socket]
                if in_last_epoch is not None:
                    due[socket] = {n: _where(in_last_epoch, each) for n, each in tensors.items()}
        return due


def _drops_layers(layer: nn.Module) -> bool:
    """Whether it leaves layers out at random."""
    return isinstance(layer, StochasticDepth) and layer.p > 0


def _where(rows: Tensor, value: Tensor) -> Tensor:
    """``value`` [A, ...] in ``rows`` [A] bool, zero in the others."""
    return value.where(rows.view(-1, *[1] * (value.dim() - 1)), 0)


def _add_up(sums: dict[str, Tensors], measured: Mapping[str, Tensors], rows: int) -> None:
    """Add ``measured``, [A, ...] of the first A rows, to ``sums``, [``rows``, ...]."""
    for socket, tensors in measured.items():
        of_socket = sums.setdefault(socket, {})
        for name, value in tensors.items():
            if name not in of_socket:
                of_socket[name] = value.new_zeros(rows, *value.shape[1:])
            of_socket[name][: len(value)] += value
