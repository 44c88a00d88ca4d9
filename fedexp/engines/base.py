"""What every engine does: local training, answers to the sampler, and evaluation."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedexp.core.client import ClientModule
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory
from fedexp.core.randomness import seed_layers
from fedexp.core.sockets import Phase
from fedexp.data.federated import ClientData
from fedexp.data.samples import Samples, Subset
from fedexp.distributed.ranks import Ranks
from fedexp.engines.graph import Graphs
from fedexp.engines.kept_optimizer import optimizer_state, restore_optimizer
from fedexp.engines.predictions import Predictions, Select, Selection
from fedexp.engines.resources import Resources
from fedexp.engines.scorer import Scorer
from fedexp.engines.stack import Stack
from fedexp.engines.steps import EagerSteps, Steps
from fedexp.state.client_state import ClientState

_PERSONAL_PARTS = ("head", "loss", "personalization")
"""The parts that begin for a personal model: the regularizer belongs to the shared model."""


class Engine:
    """Executes local training and evaluation; results do not depend on which engine it is.

    A subclass implements ``train``; it may override the rest where it knows a faster way.

    Attributes:
        shares_cohort: whether it can run in several processes that share the cohort.
        captures_steps: whether ``engine.graph`` is for it.
        chosen: what ``choose`` has chosen; None where there is nothing to choose.
        graphs: training steps captured in CUDA graphs; None captures none.
    """

    shares_cohort: ClassVar[bool] = True
    captures_steps: ClassVar[bool] = False
    chosen: str | None = None

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.scorer = Scorer(resources)
        self.graphs: Graphs | None = None

    def on_trial(self, resources: Resources) -> "Engine":
        """This engine with other resources, of the same resident module; see ``engines.trial``."""
        other = copy(self)
        other.resources = resources
        return other

    def choose(
        self, ranks: Ranks, broadcast: Callable[[int], Message], cohort_size: int
    ) -> str | None:
        """Choose by a trial before the first round; all ranks must call it.

        Args:
            ranks: the processes, which choose the same.
            broadcast: round -> its message.
            cohort_size: clients that take part in a round.

        Returns:
            What was chosen and why, in one line; None if there is nothing to choose.
        """

    def use(self, chosen: str) -> None:
        """Use what an earlier part of the run has chosen."""

    def compile(self) -> None:
        """Compile what every training step computes with ``torch.compile``."""
        backbone: Any = self.resources.module.backbone
        backbone.compile()
        if hasattr(backbone, "forward_levels"):
            backbone.forward_levels = torch.compile(backbone.forward_levels)

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Train the cohort; yields each client's update when it is ready, in any order.

        A client that is in the cohort several times trains once; ``Update.draws`` counts how often.
        If an update is not finite, its client's state goes back to what it was before the round. An
        exception has a note with the client and the round.
        """
        raise NotImplementedError

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """The sampler's ``answer`` at each client, under the global model: (client, answer)."""
        if not clients:
            return
        module = self.resources.load_global(message)
        untrained = self.resources.split(self.resources.initial)[1]
        for client in clients:
            module.load(self.resources.store.private(client) or untrained)
            module.begin_turn(self.resources.data.clients[client], message.round)
            yield client, self.resources.sampler.answer(module)

    def evaluate(
        self, message: Message, samples: Samples | Subset | None = None
    ) -> Predictions | None:
        """The global model, if there is one, on ``samples``; the test split by default."""
        if not self.resources.personalization.has_global:
            return None
        self.resources.load_global(message)
        return self.scorer.predict(personal=False, samples=samples)

    def evaluate_personal(
        self, message: Message, tune: bool = True, select: Select = lambda client: None
    ) -> Iterator[tuple[int, Predictions]]:
        """The personal model of every client that has one, on the test split; in any order.

        If clients hold out samples for validation, each model is also scored on its client's. Its
        model is in the resident module when a client's predictions are yielded.

        Args:
            message: a round's global model.
            tune: whether models that are tuned before they are scored are; if not, what tuning
                would start from is scored.
            select: which samples of the test split each client's model is scored on.
        """
        resources, scorer = self.resources, self.scorer
        resources.load_global(message)  # the parts receive the round's message
        clients = resources.store.clients_with_model
        size = scorer.stack_size()

        def selected(client: int) -> Selection | None:
            return select(resources.data.clients[client])

        if size > 1:
            clients.sort(key=lambda client: _length(selected(client)))  # little padding
        for start in range(0, len(clients), size):
            group = clients[start : start + size]
            stack = self.begin_all(group, lambda c: self._load_personal(c, message, tune))
            yield from scorer.score_stack(stack, group, list(map(selected, group)))

    def _load_personal(self, client: int, message: Message, tune: bool) -> None:
        """Load the personal model of ``client`` into the resident module, tuned if asked."""
        resources = self.resources
        if tuning := resources.personalization.tuning():
            module = self.begin_tuning(client, message)
            if tune:
                self.fit(module, tuning)
        else:
            resources.module.begin_turn(resources.data.clients[client], message.round)
            resources.module.load(resources.store.model(client))

    def begin_all(self, clients: Sequence[int], begin: Callable[[int], object]) -> Stack:
        """A stack with a row for each of ``clients``; ``begin`` loads one into the module."""
        stack = Stack(self.resources.module, len(clients))
        for row, client in enumerate(clients):
            begin(client)
            stack.save_row(row)
        return stack

    def begin(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Load this client's shared model into the resident module, ready for local training."""
        module = self.resources.load_global(message)
        module.load(state.private)
        module.begin_turn(self.training_data(client, message), message.round)
        self._begin_parts(self.resources.parts, message, state)
        return module

    def begin_personal(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """Load this client's separate model into the resident module, ready for training."""
        module = self.resources.load_global(message)
        module.begin_turn(self.training_data(client, message), message.round, personal=True)
        module.load(state.separate_model or self.resources.initial)
        self._begin_parts(_PERSONAL_PARTS, message, state)
        return module

    def begin_tuning(self, client: int, message: Message) -> ClientModule:
        """The resident module as this client before tuning, with the model that it tunes.

        Tuning comes after the message's round, and takes the learning rate and the batches of the
        next one.
        """
        store = self.resources.store
        memories = {name: store.memory(client, name) for name in _PERSONAL_PARTS}
        copy = ClientState(memories, store.private(client) or {})
        module = self.resources.load_global(message)
        tunes_local = self.resources.personalization.tunes_local
        module.load(store.model(client) if tunes_local else copy.private)
        module.begin_turn(self.resources.data.clients[client], message.round + 1, personal=True)
        self._begin_parts(_PERSONAL_PARTS, message, copy)
        return module

    def kept_optimizer(self, model: str, state: ClientState) -> Memory | None:
        """This client's optimizer state of ``model``; None without ``local.keep_optimizer``."""
        return state.memory(model) if self.resources.local.keep_optimizer else None

    def fit(
        self, module: ClientModule, phases: Sequence[Phase], kept: Memory | None = None
    ) -> Tensors:
        """Train the module on its client's data; every call sees the batches of client and round.

        Args:
            module: the resident module.
            phases: the phases of local training.
            kept: optimizer state to start from, and then the state after training; None starts
                each phase with a fresh optimizer.

        Returns:
            Scalars on the device: ``loss``, the mean objective over all steps, and
            ``cross_entropy``, the mean cross-entropy over the steps of the last phase's last epoch.
        """
        local = self.resources.local
        batches = module.data.local_batches(module.round, local.batch_size)
        losses = []
        for phase in phases:
            module.begin_phase(phase)
            optimizer = module.configure_optimizers()
            trained = dict(module.trained_parameters())
            if kept is not None:
                restore_optimizer(optimizer, [(trained, kept)])
            take_step = self._steps(phase, optimizer)
            for epoch in range(phase.epochs):
                if phase is phases[-1] and epoch == phase.epochs - 1:
                    module.cross_entropies = []
                losses += [take_step(batch, number) for number, batch in enumerate(batches)]
            if kept is not None:
                kept.update(optimizer_state(optimizer, trained))
        return fit_metrics(losses, module)

    def _steps(self, phase: Phase, optimizer: Optimizer) -> Steps:
        """How the client in the resident module trains in this phase."""
        resources, local = self.resources, self.resources.local
        grad_clip = local.grad_clip if phase.clipped else None
        if self.graphs is not None:
            return self.graphs.steps(phase, optimizer, grad_clip)
        return EagerSteps(resources.fabric, resources.module, optimizer, grad_clip)

    def finish(self, state: ClientState, fitted: Tensors, draws: int) -> Update:
        """The update of the client whose trained model is in the resident module.

        Also stores its private weights and its personal model in ``state``. ``fitted`` is what
        ``fit`` returned; ``end_turns`` adds it to the metrics.
        """
        module, parts = self.resources.module, self.resources.parts
        unknown = torch.full((), math.nan, device=module.device)
        module.cross_entropy = fitted.get("cross_entropy", unknown)
        reports = {name: part.report(module, state.memory(name)) for name, part in parts.items()}
        state.personal_model = {name: value.clone() for name, value in module.weights.items()}
        shared, state.private = self.resources.split(state.personal_model)
        return Update(
            client=module.data.client,
            num_samples=module.data.num_samples,
            weights=shared,
            extras={name: report for name, report in reports.items() if report},
            metrics=dict(module.logged),
            directions=module.directions,
            draws=draws,
        )

    def finish_personal(self, state: ClientState) -> None:
        """Store the separate model in the resident module as the client's personal model."""
        module = self.resources.module
        state.personal_model = {name: value.clone() for name, value in module.weights.items()}
        state.separate_model = {
            name: w for name, w in state.personal_model.items() if module.is_sent(name)
        }

    def training_data(self, client: int, message: Message) -> ClientData:
        """This client's training data in this round, with injected faults."""
        return self.resources.faults.data(message.round, self.resources.data.clients[client])

    def _begin_parts(self, names: Iterable[str], message: Message, state: ClientState) -> None:
        """Seed the layers and call ``begin`` of these parts for the resident module's client."""
        module = self.resources.module
        seed_layers(
            module.device, self.resources.data.seed, "local", module.round, module.data.client
        )
        for name in names:
            self.resources.parts[name].begin(module, message, state.memory(name))


def _length(selection: Selection | None) -> int:
    return 0 if selection is None else len(selection.index)


def fit_metrics(losses: Sequence[Tensor], module: ClientModule) -> Tensors:
    """What ``Engine.fit`` returns, from each step's loss; stops recording cross-entropies."""
    metrics = {"loss": torch.stack(list(losses)).mean()}
    if module.cross_entropies:
        metrics["cross_entropy"] = torch.stack(module.cross_entropies).mean()
    module.cross_entropies = None
    return metrics
