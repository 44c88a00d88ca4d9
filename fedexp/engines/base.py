"""What every engine is given, and what it does."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor

from fedexp.config.schema import Local
from fedexp.core.client import ClientModule
from fedexp.core.frozen_copies import Outputs, full_precision
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.part import Memory, Part
from fedexp.core.prototypes import class_prototypes
from fedexp.core.randomness import seed_layers
from fedexp.core.sockets import Head, Personalization, Phase
from fedexp.data.federated import ClientData, FederatedData, Samples, Subset
from fedexp.engines.kept_optimizer import optimizer_state, restore_optimizer
from fedexp.faults.base import Faults
from fedexp.faults.quarantine import is_finite
from fedexp.samplers.base import Sampler
from fedexp.state.client_state import ClientState
from fedexp.state.client_store import ClientStore

_OWN_PARTS = ("head", "loss", "personalization")
"""What adapts to a client whose own model is trained: the regularizer ties to the shared one."""


@dataclass(frozen=True)
class Predictions:
    """What one pass of a model over the test split, or over other samples, measures.

    Attributes:
        correct: [n] bool: whether each sample was classified correctly.
        loss: mean cross-entropy.
        class_vectors: [C, d] tensors on the CPU: ``feature``, the mean z of each class (zero for a
            class without samples); ``head_feature``, the mean normalised z, if the head normalises;
            ``classifier``, the head's vectors, if it has any.
        validation: of a personal model, [m_k] bool: whether each sample that its client holds out
            for validation was classified correctly.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)
    validation: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))


@dataclass(frozen=True)
class Resources:
    """What an engine works with.

    Attributes:
        fabric: where and how tensors are computed.
        module: the resident module.
        data: the population's data, on Fabric's device.
        parts: socket -> part; their client halves run in the engine.
        sampler: the one among them whose questions clients answer.
        personalization: what is shared and how a client trains.
        initial: every weight, but for what the head derives, before the first round.
        store: what clients keep for themselves.
        local: epochs, batch size, gradient clipping.
        eval_batch_size: test samples in one forward pass.
        faults: what goes wrong on purpose.
    """

    fabric: Fabric
    module: ClientModule
    data: FederatedData
    parts: Mapping[str, Part]
    sampler: Sampler
    personalization: Personalization
    initial: Tensors
    store: ClientStore
    local: Local
    eval_batch_size: int
    faults: Faults

    def split(self, weights: Tensors) -> tuple[Tensors, Tensors]:
        """(shared, private) weights, without what the head derives from messages."""
        own = {name: weight for name, weight in weights.items() if self.module.is_sent(name)}
        shared = {n: w for n, w in own.items() if self.personalization.shared(n)}
        return shared, {name: weight for name, weight in own.items() if name not in shared}

    def load_global(self, message: Message) -> ClientModule:
        """The resident module as the global model of this message; what is private is initial."""
        self.module.load(self.initial | message.weights)
        for part in self.parts.values():
            part.receive(message)
        return self.module


class Engine:
    """Executes local training and evaluation; results do not depend on which engine it is.

    A subclass says how a cohort is trained; questions and evaluation are the same for all that do
    not know better.

    Attributes:
        shares_cohort: whether it can be one of several processes, each with a share of the cohort.
    """

    shares_cohort: ClassVar[bool] = True

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def compile(self) -> None:
        """Have PyTorch compile what is computed in every step."""
        self.resources.module.backbone.compile()

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Each client's update, as soon as it is there, in any order.

        A client that stands in the cohort several times trains once; its update says how often. One
        whose update is not finite keeps nothing of its turn. An error carries the client's number
        and the round.
        """
        raise NotImplementedError

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """What each client answers the sampler about the global model: (client, answer)."""
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
        return self.predict(personal=False, samples=samples)

    def evaluate_personal(self, message: Message) -> Iterator[tuple[int, Predictions]]:
        """The personal model of every client that has one, on the whole test split.

        If clients hold out samples for validation, each model is also scored on its client's.
        """
        resources = self.resources
        tuning = resources.personalization.tuning()
        resources.load_global(message)  # for what parts know of the round
        for client in resources.store.remembered:
            if tuning:
                self.fit(self.begin_tuning(client, message), tuning)
            else:
                resources.module.load(resources.store.model(client))
            yield (
                client,
                replace(self.predict(personal=True), validation=self.validate_personal(client)),
            )

    def begin(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """The resident module as this client at the start of local training."""
        module = self.resources.load_global(message)
        module.load(state.private)
        module.begin_turn(self.training_data(client, message), message.round)
        self._begin_parts(self.resources.parts, message, state)
        return module

    def begin_personal(self, client: int, message: Message, state: ClientState) -> ClientModule:
        """The resident module as a model of this client's own, before its share of the round."""
        module = self.resources.load_global(message)
        module.begin_turn(self.training_data(client, message), message.round, personal=True)
        module.load(state.separate_model or self.resources.initial)
        self._begin_parts(_OWN_PARTS, message, state)
        return module

    def begin_tuning(self, client: int, message: Message) -> ClientModule:
        """The resident module as this client that has got the global model to tune it."""
        store = self.resources.store
        memories = {name: store.memory(client, name) for name in _OWN_PARTS}
        copy = ClientState(memories, store.private(client) or {})
        module = self.resources.load_global(message)
        module.load(copy.private)
        module.begin_turn(self.resources.data.clients[client], message.round, personal=True)
        self._begin_parts(_OWN_PARTS, message, copy)
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
        fabric, local = self.resources.fabric, self.resources.local
        batches = module.data.local_batches(module.round, local.batch_size)
        losses = []
        for phase in phases:
            module.begin_phase(phase)
            optimizer = module.configure_optimizers()
            trained = dict(module.trained_parameters())
            if kept is not None:
                restore_optimizer(optimizer, [(trained, kept)])
            for epoch in range(phase.epochs):
                if phase is phases[-1] and epoch == phase.epochs - 1:
                    module.cross_entropies = []
                for step, batch in enumerate(batches):
                    with fabric.autocast():
                        loss = module.training_step(batch, step)
                    fabric.backward(loss)
                    if local.grad_clip is not None:
                        fabric.clip_gradients(module, optimizer, max_norm=local.grad_clip)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.detach())
            if kept is not None:
                kept.update(optimizer_state(optimizer, trained))
        return fit_metrics(losses, module)

    def finish(self, state: ClientState, metrics: Mapping[str, float], draws: int) -> Update:
        """The update of the client that the resident module is, after local training.

        ``metrics`` are those of ``fit``.
        """
        module, parts = self.resources.module, self.resources.parts
        reports = {name: part.report(module, state.memory(name)) for name, part in parts.items()}
        state.personal_model = {name: value.clone() for name, value in module.weights.items()}
        shared, state.private = self.resources.split(state.personal_model)
        return Update(
            client=module.data.client,
            num_samples=module.data.num_samples,
            weights=shared,
            extras={name: report for name, report in reports.items() if report},
            metrics={**metrics, **module.logged},
            directions=module.directions,
            draws=draws,
        )

    def deliver(
        self, update: Update, message: Message, state: ClientState, before: ClientState
    ) -> Update:
        """What arrives of the update, with what goes wrong on purpose, when its turn is over.

        If that is not finite, the server will not take it, and the client keeps nothing of the turn
        either: ``before``, a copy of the state as the turn found it, says what it goes back to.
        """
        arrived = self.resources.faults.corrupt(update, message)
        if not is_finite(arrived):
            vars(state).update(vars(before))
        return arrived

    def finish_personal(self, state: ClientState) -> None:
        """Keep the client's own model, which the resident module is, as its personal one."""
        module = self.resources.module
        state.personal_model = {name: value.clone() for name, value in module.weights.items()}
        state.separate_model = {
            name: w for name, w in state.personal_model.items() if module.is_sent(name)
        }

    @torch.inference_mode()
    def predict(self, personal: bool, samples: Samples | Subset | None = None) -> Predictions:
        """The resident module, as a personal or the global model, on the test split or others."""
        module = self.resources.module.eval()
        samples = self.resources.data.test if samples is None else samples
        outputs = self.personal_outputs if personal else module.outputs
        found = []
        for inputs, _ in samples.batches(self.resources.eval_batch_size):
            with self.resources.fabric.autocast():
                found.append(outputs(inputs))
        z, logits = (torch.cat(each) for each in zip(*found, strict=True))
        return scored(z, logits, samples.labels, module.head)

    def validate_personal(self, client: int) -> Tensor:
        """``Predictions.validation`` of the resident module as the personal model of ``client``."""
        data = self.resources.data
        held_out = Subset(data.train, data.clients[client].validation_index)
        if not len(held_out):
            return torch.zeros(0, dtype=torch.bool)
        return self.predict(personal=True, samples=held_out).correct

    def personal_outputs(self, inputs: Tensor) -> Outputs:
        """What the resident module makes of ``inputs`` [B, ...] as a personal model."""
        module = self.resources.module
        z, logits = module.outputs(inputs)
        with full_precision(z):
            return Outputs(z, module.personalization.personalize(z, logits))

    def training_data(self, client: int, message: Message) -> ClientData:
        """What this client trains on in this round, with what goes wrong on purpose."""
        return self.resources.faults.data(message.round, self.resources.data.clients[client])

    def _begin_parts(self, names: Iterable[str], message: Message, state: ClientState) -> None:
        """Let these parts adapt the resident module to its client."""
        module = self.resources.module
        seed_layers(
            module.device, self.resources.data.seed, "local", message.round, module.data.client
        )
        for name in names:
            self.resources.parts[name].begin(module, message, state.memory(name))


def fit_metrics(losses: Sequence[Tensor], module: ClientModule) -> Tensors:
    """What ``Engine.fit`` returns, given each step's loss; ends the recording in ``module``."""
    metrics = {"loss": torch.stack(list(losses)).mean()}
    if module.cross_entropies:
        metrics["cross_entropy"] = torch.stack(module.cross_entropies).mean()
    module.cross_entropies = None
    return metrics


def scored(z: Tensor, logits: Tensor, labels: Tensor, head: Head) -> Predictions:
    """The predictions of a model with this head, given its z [n, d], logits [n, C], labels [n]."""
    features = {"feature": z}
    if (normalized := head.normalize(z)) is not z:
        features["head_feature"] = normalized
    class_vectors = {
        name: class_prototypes(each, labels, logits.shape[1])[0].cpu()
        for name, each in features.items()
    }
    if (classifier := head.prototypes()) is not None:
        class_vectors["classifier"] = classifier.cpu()
    return Predictions(
        correct=(logits.argmax(dim=1) == labels).cpu(),
        loss=F.cross_entropy(logits, labels).item(),
        class_vectors=class_vectors,
    )
