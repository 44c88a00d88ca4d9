"""FedPAC: a shared body, and for each client a different combination of the cohort's heads."""

from collections.abc import Sequence
from typing import Any

import torch

from fedexp.config.schema import Epochs
from fedexp.core.client_protocol import Client
from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Memory, Setting
from fedexp.core.sockets import Loss, Network
from fedexp.personalization.client_models import ClientModels
from fedexp.personalization.collaboration import collaboration_weights, combined, feature_statistics
from fedexp.personalization.fedper import GlobalModel
from fedexp.personalization.fedrep import FedRep


class FedPAC(FedRep):
    """Each client gets a combination of the cohort's heads (Xu et al., ICLR 2023, Algorithm 1).

    The body is the backbone. A client first trains its head alone, then its body alone. It sends
    body and head, and the statistics h and V of its features under the received body
    (``feature_statistics``). The server averages the bodies. For each client of the cohort it
    combines the cohort's heads with the weights of ``collaboration_weights``. The client gets this
    head when it is next drawn.

    The paper's other half is the alignment of features with global centroids: use
    ``loss=prototype_align``. This loss ignores samples whose class has no centroid yet; the
    released code pulls their features to the client's own centroid of the class. The released code
    trains the head with a learning rate of 0.1, and the body with 0.01 or 0.02; here head and body
    have the same learning rate. The released code sets collaboration weights below 0.001 to 0; here
    small weights stay as they are. It measures a client's personal model twice in a round: as
    received, with the new body and the combined head, and after local training. Here the personal
    model is the second one, as in ``FedPer``. The code does not say which of the two is in the
    paper's tables. Float buffers of a head are combined like parameters. Integer buffers are copied
    from the client's own head.

    Args:
        head_epochs: epochs of training the head, even if ``local.steps`` is set. The body is
            trained for ``local.epochs`` or ``local.steps``.
        global_model: whether a global model is evaluated; see ``FedPer``.
    """

    def __init__(self, head_epochs: Epochs, global_model: GlobalModel) -> None:
        super().__init__(head_epochs, global_model)

    def create(self, network: Network, loss: Loss) -> None:
        """Store the number of classes, and the names of the head's buffers that are never sent."""
        self._num_classes = network.num_classes
        self._derived = {f"head.{name}" for name in network.head.derived}

    def setup(self, setting: Setting) -> None:
        """Make the store of the clients' combined heads."""
        self.store = setting.server.make_store("personalization")
        self._heads = ClientModels(self.store)

    def begin(self, client: Client, message: PartMessage, memory: Memory) -> None:
        """Compute the statistics h and V of the features under the received body, for ``report``.

        See ``feature_statistics``.
        """
        h, variance = feature_statistics(*client.features(), self._num_classes)
        memory.update(h=h, variance=variance)

    def report(self, client: Client, memory: Memory) -> Tensors:
        """The weights of the trained head, and two statistics of the client's features.

        The statistics are ``h`` [C, d] and ``variance``, a scalar; see ``feature_statistics``.
        """
        head = {
            name: w.clone()
            for name, w in client.weights.items()
            if name.startswith("head.") and name not in self._derived
        }
        return head | {name: memory.pop(name) for name in ("h", "variance")}

    def aggregate(self, updates: Sequence[PartUpdate]) -> None:
        """Compute the combined head of each client of the cohort."""
        updates = sorted(updates, key=lambda update: update.client)
        heads = [dict(update.extras) for update in updates]
        h = torch.stack([head.pop("h") for head in heads])
        variances = torch.stack([head.pop("variance") for head in heads])
        for update, own, weights in zip(
            updates, heads, collaboration_weights(h, variances), strict=True
        ):
            self._heads[update.client] = {
                name: combined([head[name] for head in heads], weights)
                if value.is_floating_point()
                else value
                for name, value in own.items()
            }

    def message_to(self, client: int, message: PartMessage) -> PartMessage:
        """The message with the client's combined head; ``message`` if there is none yet."""
        if client not in self._heads:
            return message
        device = next((w.device for w in message.weights.values()), torch.device("cpu"))
        head = {name: w.to(device) for name, w in self._heads[client].items()}
        return PartMessage(message.round, message.weights | head, message.extras)

    def server_state(self) -> dict[str, Any]:
        """The version number of each combined head, by client. The heads are in ``store``."""
        return {"versions": self._heads.state()}

    def load_server_state(self, state: dict[str, Any]) -> None:
        """Inverse of ``server_state``."""
        self._heads.load(state["versions"])
