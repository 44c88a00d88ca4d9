"""The base class of the engines: local training, tuning and answers to the sampler."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.optim import Optimizer

from fedexp.config.compatibility.declaration import Declaration, Declares
from fedexp.core import results
from fedexp.core.client import ClientModule
from fedexp.core.client_protocol import Batch
from fedexp.core.error_notes import noted
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory
from fedexp.core.randomness import seed_layers
from fedexp.core.sockets import Personalization, Phase
from fedexp.core.turn import Turn
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData
from fedexp.engines.kept_optimizer import SHARED_MODEL, optimizer_state, restore_optimizer
from fedexp.engines.resources import Resources
from fedexp.engines.schedule import Schedule
from fedexp.engines.stack import Stack
from fedexp.state.client_state import ClientState

_PERSONAL_PARTS = ("head", "loss", "personalization")
"""The parts that act on a personal model; the regularizer acts on the shared model only."""


@dataclass(frozen=True)
class Work:
    """The facts of a run by which an engine may be chosen; they do not change during the run.

    Attributes:
        clients: the largest number of clients that one process trains in a round.
        on_gpu: whether it trains on a GPU with CUDA.
        compiles: whether the training step is compiled.
        flops: counts the operations in the forward pass of a training step.
        backbone: the backbone; it may be on the meta device.
        components: place in the config -> part, or injected faults.
        declarations: the declarations of all components.
    """

    clients: int
    on_gpu: bool
    compiles: bool
    flops: Callable[[], int]
    backbone: nn.Module
    components: Mapping[str, object]
    declarations: Sequence[Declaration]


class Engine(Declares):
    """Executes local training; the results do not depend on the choice of engine.

    A subclass implements ``train`` and may override other methods with faster ones.

    Attributes:
        schedule: plans the turns of a round from the clients' devices.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.schedule = Schedule(resources)
        personalization = type(resources.personalization)
        self._components = resources.components
        self._client_chooses = personalization.choose is not Personalization.choose

    @classmethod
    def for_work(cls, engine: partial[Any], work: Work) -> tuple[partial[Any], str]:
        """The engine that trains this work, and why; ``engine`` makes this class's engine.

        An engine may stand for others and choose one of them; the reason is empty if not.
        """
        return engine, ""

    def compile(self, mode: Literal["default", "reduce-overhead"]) -> None:
        """Compile the backbone with ``torch.compile``; a subclass may compile the whole step."""
        backbone: Any = self.resources.module.backbone
        backbone.compile(mode=mode)
        if hasattr(backbone, "forward_levels"):
            backbone.forward_levels = torch.compile(backbone.forward_levels, mode=mode)

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Train the cohort; yields each client's update when it is ready, in any order.

        A client that is in the cohort several times trains once; ``Update.draws`` says how often it
        is in the cohort. If an update is not finite or is late, the client's state is reset to the
        start of the round. An exception gets a note with the client and the round.
        """
        raise NotImplementedError

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """Ask clients on behalf of the sampler: yield (client, the client's ``Sampler.answer``).

        A client computes the answer with the weights that it receives and its own private weights.
        If the sampler has ``trains_candidates``, the client first trains this model, only for the
        answer.
        """
        for client in clients:
            doing = f"asking client {client} for the sampler in round {message.round}"
            with noted(doing, self._components):
                answer = self._answer(client, message)
            yield client, answer

    def _answer(self, client: int, message: Message) -> Tensors:
        """The client's answer to the sampler."""
        sampler, data = self.resources.sampler, self.resources.data.clients[client]
        if sampler.trains_candidates:
            self._train_copy(client, message)
        else:
            private = self.resources.store.private(client) or {}
            own = self._received(data, message, private)
            self._load_model(own, private).begin_turn(data, own)
        answer = sampler.answer(self.resources.module)
        return results.tensors(answer, "sampler", sampler, "answer(...)")

    def _train_copy(self, client: int, message: Message) -> None:
        """Train a client's shared model with a copy of the client's state; nothing is stored."""
        store, resources = self.resources.store, self.resources
        memories = {name: store.memory(client, name) for name in (*resources.parts, SHARED_MODEL)}
        copy = ClientState(memories, store.private(client) or {})
        module = self.begin(client, message, copy)
        phases = resources.personalization.phases(self.epochs(module.turn))
        self.fit(module, phases, self.kept_optimizer(SHARED_MODEL, copy))

    def tuned(
        self, clients: Sequence[int], size: int, message: Message
    ) -> Iterator[tuple[Sequence[int], Stack]]:
        """Yield groups of at most ``size`` clients, each with a stack of tuned personal models.

        Some methods start tuning from the global model in ``message``.
        """
        tuning = self.tuning_phases()

        def tune(client: int) -> None:
            module = self.begin_tuning(client, message)
            if tuning:
                self.fit(module, tuning)

        for start in range(0, len(clients), size):
            group = clients[start : start + size]
            yield group, self.begin_all(group, tune, f"after round {message.round}")

    def tuning_phases(self) -> Sequence[Phase]:
        """The phases of tuning a personal model that have at least one training step."""
        return [phase for phase in self.resources.personalization.tuning() if phase.epochs]

    def begin_all(self, clients: Sequence[int], begin: Callable[[int], object], when: str) -> Stack:
        """Build a stack with a row for each client.

        ``begin(client)`` loads the client's model into the resident module, which is then copied
        into the row. ``when`` is the round, as a note on an exception names it.
        """
        stack = Stack(self.resources.module, len(clients))
        for row, client in enumerate(clients):
            with noted(f"beginning with client {client} {when}", self._components):
                begin(client)
            stack.save_row(row)
        return stack

    def begin(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Load this client's shared model into the resident module, ready for local training."""
        data = self.training_data(client, message)
        message = self._received(data, message, state.private)
        module = self._load_model(message, state.private)
        module.begin_turn(data, message)
        self._begin_parts(self.resources.parts, message, state)
        return module

    def begin_personal(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Load this client's separate model into the resident module, ready for training."""
        data = self.training_data(client, message)
        message = self._received(data, message, state.private)
        module = self.resources.load_global(message)
        module.begin_turn(data, message, personal=True)
        module.load(state.separate_model or self.resources.initial)
        self._begin_parts(_PERSONAL_PARTS, message, state)
        return module

    def begin_tuning(self, client: int, message: Message) -> ClientModule:
        """Load the model that this client will tune into the resident module.

        Tuning after round t uses the learning rate and the batches of round t + 1.
        """
        store = self.resources.store
        memories = {name: store.memory(client, name) for name in _PERSONAL_PARTS}
        copy = ClientState(memories, store.private(client) or {})
        data = self.resources.data.clients[client]
        message = self._received(data, message, copy.private)
        module = self._load_model(message, copy.private)
        if self.resources.personalization.tunes == "local":
            module.load(store.model(client))
        module.begin_turn(data, message, personal=True, round=message.round + 1)
        self._begin_parts(_PERSONAL_PARTS, message, copy)
        return module

    def kept_optimizer(self, model: str, state: ClientState) -> Memory | None:
        """The client's optimizer state for ``model``; None without ``local.keep_optimizer``."""
        return state.memory(model) if self.resources.local.keep_optimizer else None

    def epochs(self, turn: Turn) -> float:
        """The number of local epochs of this turn; see ``Resources.local_epochs``."""
        return self.resources.local_epochs(cast(ClientData, turn.data), turn.round)

    def batches_of(self, turn: Turn) -> LocalBatches:
        """The training batches of the client whose turn this is."""
        return self.resources.local_batches(cast(ClientData, turn.data), turn.round)

    def fit(
        self, module: ClientModule, phases: Sequence[Phase], kept: Memory | None = None
    ) -> None:
        """Train the module on its client's data.

        The batches depend only on the client and the round. The module's turn records the steps.

        Args:
            module: the resident module.
            phases: the phases of local training.
            kept: the optimizer state to start from; it is updated after training. With None each
                phase starts with a fresh optimizer.
        """
        batches = self.batches_of(module.turn)
        for number, phase in enumerate(phases, start=1):
            steps = batches.steps_in(phase.epochs)
            if number == len(phases):
                module.turn.begin_last_phase(steps, len(batches))
            module.begin_phase(phase)
            self._fit_phase(phase, batches, steps, kept)
            module.turn.samples += batches.samples_in(steps)
        module.turn.finish()

    def _fit_phase(
        self, phase: Phase, batches: LocalBatches, steps: int, kept: Memory | None
    ) -> None:
        """Take the ``steps`` training steps of a phase with the resident module."""
        local, module = self.resources.local, self.resources.module
        optimizer = module.configure_optimizers()
        trained = dict(module.trained_parameters())
        if kept is not None:
            restore_optimizer(optimizer, [(trained, kept)])
        grad_clip = local.grad_clip if phase.clipped else None
        for chunk in batches.next_chunks(steps):
            self._take_step(batches.gather(chunk), optimizer, grad_clip)
        if kept is not None:
            kept.update(optimizer_state(optimizer, trained))

    def _take_step(self, batch: Batch, optimizer: Optimizer, grad_clip: float | None) -> None:
        """Take one training step, which the module's turn records."""
        fabric, module = self.resources.fabric, self.resources.module
        with fabric.autocast():
            loss = module.training_step(batch, module.steps)
        fabric.backward(loss)
        module.on_after_backward()
        if grad_clip is not None:
            # Raising for a non-finite gradient would wait for the GPU; ``Quarantine`` checks later.
            fabric.clip_gradients(module, optimizer, max_norm=grad_clip, error_if_nonfinite=False)
        module.add_unclipped_gradient()
        optimizer.step()
        optimizer.zero_grad()

    def finish(self, state: ClientState, draws: int) -> Update:
        """Return the update of the client whose trained model is in the resident module.

        Also stores the client's private weights and personal model in ``state``. ``end_turns`` adds
        ``Turn.fitted`` to the metrics.
        """
        module, parts = self.resources.module, self.resources.parts
        reports = {
            name: results.tensors(
                part.report(module, state.memory(name)), name, part, "report(...)"
            )
            for name, part in parts.items()
        }
        local = {name: value.clone() for name, value in module.weights.items()}
        shared, state.private = self.resources.split(local)
        personalization = self.resources.personalization
        own = personalization.personal_weights(local)
        whose = "personalization", personalization, "personal_weights(...)"
        state.personal_model = local | results.some_weights(own, local, *whose)
        for name, part in parts.items():
            found = part.upload(module, shared, state.memory(name))
            if found is not shared:
                shared = results.weights(found, shared, name, part, "upload(...)")
            results.memory(state.memory(name), name, part)
        return Update(
            client=module.data.client,
            num_samples=module.turn.num_samples,
            weights=shared,
            extras={name: report for name, report in reports.items() if report},
            metrics=dict(module.turn.logged),
            directions=module.turn.directions,
            steps=module.turn.steps,
            samples=module.turn.samples,
            draws=draws,
        )

    def finish_personal(self, state: ClientState) -> None:
        """Store the module's weights as the client's separate model and as its personal model."""
        module = self.resources.module
        state.personal_model = {name: value.clone() for name, value in module.weights.items()}
        state.separate_model = {
            name: w for name, w in state.personal_model.items() if module.is_sent(name)
        }

    def training_data(self, client: int, message: Message) -> ClientData:
        """The client's training data in the message's round, with injected faults.

        A client that is too slow for a deadline may get a view of its data with fewer steps.
        """
        faults = self.resources.faults
        data = faults.data(message.round, self.resources.data.clients[client])
        results.instance(data, ClientData, "faults", faults, "data(...)")
        return self.schedule.data(message.round, data)

    def _received(self, data: ClientData, message: Message, private: Tensors) -> Message:
        """The message to this client, with weights replaced by ``Personalization.choose``."""
        message = message.to_client(data.client)
        if not self._client_chooses:
            return message
        module = self._load_model(message, private)
        module.begin_turn(data, message)
        personalization = self.resources.personalization
        chosen = personalization.choose(module, message.to("personalization"))
        whose = "personalization", personalization, "choose(...)"
        results.some_weights(chosen, module.weights, *whose)
        return replace(message, weights=message.weights | chosen)

    def _load_model(self, message: Message, private: Tensors) -> ClientModule:
        """Load the message's weights, and the private weights that the message does not have."""
        module = self.resources.load_global(message)
        module.load({name: w for name, w in private.items() if name not in message.weights})
        return module

    def _begin_parts(self, names: Iterable[str], message: Message, state: ClientState) -> None:
        """Seed the layers and call ``begin`` of these parts for the resident module's client."""
        module = self.resources.module
        seed_layers(
            module.device, self.resources.data.seed, "local", module.round, module.data.client
        )
        for name in names:
            self.resources.parts[name].begin(module, message.to(name), state.memory(name))
