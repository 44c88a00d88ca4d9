"""What every engine is given, and what it does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor

from fedexp.client import ClientModule
from fedexp.data.federated import FederatedData
from fedexp.drawers import Drawer
from fedexp.faults.base import Faults
from fedexp.messages import Message, Tensors, Update
from fedexp.parts import Part
from fedexp.personalization.base import Personalization
from fedexp.prototypes import class_prototypes
from fedexp.randomness import seed_layers
from fedexp.reference import outputs
from fedexp.samplers.base import Sampler
from fedexp.schema import Local
from fedexp.store import ClientStore


@dataclass(frozen=True)
class Predictions:
    """How one model does on the test split: from this, one pass gives every measurement.

    Attributes:
        correct: [n] bool: whether each test sample was classified correctly.
        loss: mean cross-entropy.
        class_vectors: [C, d] tensors on the CPU: ``feature``, the mean feature of each class (zero
            where the split has none), and ``classifier``, the head's vectors if it has any.
    """

    correct: Tensor
    loss: float
    class_vectors: Mapping[str, Tensor] = field(default_factory=dict)


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
    store: ClientStore
    local: Local
    eval_batch_size: int
    faults: Faults

    def split(self, weights: Tensors) -> tuple[Tensors, Tensors]:
        """(shared, private) weights, without what the head derives from messages."""
        own = {name: weight for name, weight in weights.items() if self.module.travels(name)}
        shared = {n: w for n, w in own.items() if self.personalization.shared(n)}
        return shared, {name: weight for name, weight in own.items() if name not in shared}

    def seat_global(self, message: Message) -> ClientModule:
        """The resident module as the global model of this message."""
        self.module.seat(message.weights)
        for part in self.parts.values():
            part.receive(message)
        return self.module


class Engine:
    """Executes local training and evaluation; results do not depend on which engine it is.

    A subclass says how a cohort is trained; questions and evaluation are the same for all that do
    not know better.
    """

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        private = resources.split(resources.module.weights)[1]
        self._untrained = {name: weight.clone() for name, weight in private.items()}

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Each client's update, as soon as it is there, in any order.

        A client that stands in the cohort several times trains once; its update says how often. An
        error carries the client's number and the round.
        """
        raise NotImplementedError

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """What each client answers the sampler about the global model: (client, answer)."""
        if not clients:
            return
        module = self.resources.seat_global(message)
        for client in clients:
            module.seat(self.resources.store.private(client) or self._untrained)
            module.start(self.resources.data.clients[client], message.round)
            yield client, self.resources.sampler.answer(module)

    def evaluate(self, message: Message) -> Predictions:
        """The global model on the test split."""
        self.resources.seat_global(message)
        return self.predict()

    def evaluate_personal(self, message: Message) -> Iterator[tuple[int, Predictions]]:
        """The personal model of every client that has one, on the whole test split."""
        for client in self.resources.store.remembered:
            self.resources.module.seat(self.resources.store.model(client))
            yield client, self.predict()

    def begin(self, client: int, message: Message, drawer: Drawer) -> ClientModule:
        """The resident module as this client at the start of local training."""
        data = self.resources.data
        module = self.resources.seat_global(message)
        module.seat(drawer.private or self._untrained)
        held = self.resources.faults.data(message.round, data.clients[client])
        module.start(held, message.round)
        seed_layers(module.device, data.seed, "local", message.round, client)
        for name, part in self.resources.parts.items():
            part.begin(module, message, drawer.memory(name))
        return module

    def finish(self, drawer: Drawer, loss: float, draws: int) -> Update:
        """The update of the client that the resident module is, after local training."""
        module, parts = self.resources.module, self.resources.parts
        reports = {name: part.report(module, drawer.memory(name)) for name, part in parts.items()}
        drawer.model = {name: value.clone() for name, value in module.weights.items()}
        shared, drawer.private = self.resources.split(drawer.model)
        return Update(
            client=module.data.client,
            num_samples=module.data.num_samples,
            weights=shared,
            extras={name: report for name, report in reports.items() if report},
            metrics={"loss": loss, **module.noted},
            directions=module.directions,
            draws=draws,
        )

    @torch.inference_mode()
    def predict(self) -> Predictions:
        """The resident module on the whole test split."""
        module, test = self.resources.module.eval(), self.resources.data.test
        found = []
        for inputs, _ in test.batches(self.resources.eval_batch_size):
            with self.resources.fabric.autocast():
                found.append(outputs(module.backbone, module.head, inputs))
        z, logits = (torch.cat(each) for each in zip(*found, strict=True))
        return scored(z, logits, test.labels, module.head.prototypes())


def scored(z: Tensor, logits: Tensor, labels: Tensor, classifier: Tensor | None) -> Predictions:
    """What the outputs z [n, d] and logits [n, C] of one model say, given ``labels`` [n]."""
    class_vectors = {"feature": class_prototypes(z, labels, logits.shape[1])[0].cpu()}
    if classifier is not None:
        class_vectors["classifier"] = classifier.cpu()
    return Predictions(
        correct=(logits.argmax(dim=1) == labels).cpu(),
        loss=F.cross_entropy(logits, labels).item(),
        class_vectors=class_vectors,
    )
