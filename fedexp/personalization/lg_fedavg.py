"""LG-FedAvg: a private body for each client, and a shared head."""

from fedexp.config.compatibility.declaration import needs_trained_head
from fedexp.config.compatibility.traits import PRIVATE_BACKBONE
from fedexp.core.sockets import Personalization


class LGFedAvg(Personalization):
    """The body (backbone) is private; body and head train together (Liang et al., 2020, Alg. 1).

    The clients' bodies map inputs to local features; the shared head classifies these features. The
    bodies start from the same initial weights. The released code starts from a model that FedAvg
    has trained; to do this, load FedAvg's weights by ``model.start_from``.

    The released code averages the shared layers with equal weights; ``aggregator=uniform`` does
    this. It shares other layers than the head alone. On MNIST it shares the last three of five
    linear layers. On CIFAR-10 it shares the two convolutional layers, and the linear layers stay
    with the clients.
    """

    has_global = False
    traits = frozenset({PRIVATE_BACKBONE})
    forbids = needs_trained_head("trains nothing that clients could share")

    def shared(self, name: str) -> bool:
        """Whether the weight is shared: only the head's weights are."""
        return name.startswith("head.")
