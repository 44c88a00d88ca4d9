"""FedGH: private bodies, and a head that the server trains on the clients' class means."""

from collections.abc import Sequence

import torch
from pydantic import PositiveFloat, PositiveInt

from fedexp.config.compatibility.declaration import needs_trained_head
from fedexp.contract import Client, Loss, Memory, Network, PartMessage, PartUpdate, Setting, Tensors
from fedexp.core.prototypes import class_prototypes
from fedexp.core.randomness import torch_generator
from fedexp.core.server_training import train_classifier
from fedexp.personalization.local import Local


class FedGH(Local):
    """Clients send the mean feature of each class, and get a head (Yi et al., ACM MM 2023).

    The bodies (backbones) are private and may be different networks. A client replaces its head by
    the server's, trains body and head, and sends the mean feature of each of its classes under the
    trained body. The server trains its head on these means, labelled with their classes. In the
    first round all clients have the same initial head. A client's personal model is its latest
    local model, whose head was trained after it was received.

    Args:
        epochs: the server's passes over the class means of the cohort.
        batch_size: class means in a step of the server.
        lr: the server's learning rate, of SGD without momentum.
    """

    takes_tokens = False
    forbids = needs_trained_head("has nothing that the server could train")
    saved = ("weights", "rounds")

    def __init__(self, epochs: PositiveInt, batch_size: PositiveInt, lr: PositiveFloat) -> None:
        super().__init__()
        self.epochs, self.batch_size, self.lr = epochs, batch_size, lr
        self.weights: Tensors = {}
        self.rounds = 0

    def create(self, network: Network, loss: Loss) -> None:
        """Keep the head's initial trained parameters, from which the server's head starts."""
        named = network.head.named_parameters(prefix="head")
        self._initial = {name: w.detach().clone() for name, w in named if w.requires_grad}

    def setup(self, setting: Setting) -> None:
        """Keep the setting, which has the head as a function."""
        self._setting = setting

    def broadcast(self, round: int) -> Tensors:
        """The parameters of the server's head, after its first training."""
        return dict(self.weights)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Replace the client's head by the server's."""
        client.load(message.extras)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The mean feature of each class [C, d], and which classes the client holds [C] bool."""
        means, counts = class_prototypes(*client.features(), self._setting.num_classes)
        return {"means": means, "holds": counts > 0}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Train the server's head on the class means of the cohort."""
        reports = [each.extras for each in updates]
        holds = torch.stack([each["holds"] for each in reports])
        self.rounds += 1
        self.weights = train_classifier(
            self._setting.server.head(self.rounds),
            self.weights or self._initial,
            torch.stack([each["means"] for each in reports])[holds],
            holds.nonzero()[:, 1],
            self.epochs,
            self.batch_size,
            self.lr,
            torch_generator(self._setting.seed, "global_head", self.rounds),
        )
