"""What every engine is given, and what it does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lightning.fabric import Fabric
from torch import Tensor

from fedexp.client import ClientModule
from fedexp.data.federated import FederatedData
from fedexp.messages import Message, Tensors, Update
from fedexp.parts import Part
from fedexp.personalization.base import Personalization
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
    """Executes local training and evaluation; results do not depend on which engine it is."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources

    def train(self, cohort: Sequence[int], message: Message) -> Iterator[Update]:
        """Each client's update, as soon as it is there, in any order.

        A client that stands in the cohort several times trains once; its update says how often.
        """
        raise NotImplementedError

    def probe(self, clients: Sequence[int], message: Message) -> Iterator[tuple[int, Tensors]]:
        """What each client answers the sampler about the global model: (client, answer)."""
        raise NotImplementedError

    def evaluate(self, message: Message) -> Predictions:
        """The global model on the test split."""
        raise NotImplementedError

    def evaluate_personal(self, message: Message) -> Iterator[tuple[int, Predictions]]:
        """The personal model of every client that has one, on the whole test split."""
        raise NotImplementedError
