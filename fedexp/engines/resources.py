"""The objects that every engine works with."""

from collections.abc import Mapping
from dataclasses import dataclass

from lightning.fabric import Fabric

from fedexp.compression.differences import Differences
from fedexp.config.schema import Local
from fedexp.core.client import ClientModule
from fedexp.core.last_batch import LastBatch
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Part
from fedexp.core.randomness import numpy_generator
from fedexp.core.sockets import Personalization
from fedexp.data.batches import LocalBatches
from fedexp.data.federated import ClientData, FederatedData
from fedexp.faults.base import Faults
from fedexp.samplers.base import Sampler
from fedexp.state.client_store import ClientStore
from fedexp.system.system import System


@dataclass(frozen=True)
class Resources:
    """The resident module, the data, the parts and the clients' states.

    Attributes:
        fabric: device and precision.
        module: the resident module; every client's weights are copied into it for its turn.
        data: the population's data, on Fabric's device.
        parts: socket -> part; the engine calls its client half.
        sampler: the part that may ask clients for an answer before it chooses the cohort.
        personalization: decides which weights are shared, and the phases of local training.
        initial: every weight before the first round, without the head's derived buffers.
        store: the clients' states.
        local: settings of local training: epochs, batch size, gradient clipping.
        last_batch: the rule for the last batch of an epoch of local training.
        eval_batch_size: test samples in one forward pass.
        faults: injected faults.
        system: simulated devices and time.
        upload: compresses updates; None: updates are sent without compression.
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
    last_batch: LastBatch
    eval_batch_size: int
    faults: Faults
    system: System
    upload: Differences | None = None

    @property
    def components(self) -> dict[str, object]:
        """Place in the config -> component, for notes on exceptions (``core.error_notes``)."""
        return {"model": self.module.backbone, **self.parts, "faults": self.faults}

    def local_batches(self, data: ClientData, round: int) -> LocalBatches:
        """The batches of local training on ``data`` in this round."""
        return data.local_batches(round, self.local.batch_size, self.last_batch)

    def local_epochs(self, data: ClientData, round: int) -> float:
        """The client's number of epochs in this round, for ``Personalization.phases``.

        If ``local.epochs`` is a range, the number is a uniform draw from the whole numbers in the
        range, both ends included. The draw depends on seed, round and client. With ``local.steps``
        the number is the client's steps in this round divided by its steps in one epoch.
        """
        steps, epochs = self.local.steps, self.local.epochs
        if steps is not None:
            return data.steps(steps) / len(self.local_batches(data, round))
        if isinstance(epochs, list):
            least, most = epochs
            generator = numpy_generator(data.population.seed, "local_epochs", round, data.client)
            return int(generator.integers(least, most, endpoint=True))
        return epochs

    def split(self, weights: Tensors) -> tuple[Tensors, Tensors]:
        """Split ``weights`` into (shared, private), without the head's derived buffers."""
        own = {name: weight for name, weight in weights.items() if self.module.is_sent(name)}
        shared = {n: w for n, w in own.items() if self.personalization.shared(n)}
        return shared, {name: weight for name, weight in own.items() if name not in shared}

    def load_global(self, message: Message) -> ClientModule:
        """Load the message's global model into the module, with initial private weights."""
        self.module.load(self.initial | message.weights)
        for name, part in self.parts.items():
            part.receive(message.to(name))
        return self.module
