"""A personalization whose clients choose between the message's weights and zeros."""

from fedexp.core.client_protocol import Client
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.sockets import Personalization


class OddClientsStartFromZero(Personalization):
    """Odd clients set the received head's weight to zero."""

    def choose(self, client: Client, message: PartMessage) -> Tensors:
        name = "head.linear.weight"
        assert client.weights[name].equal(message.weights[name])
        return {name: 0 * message.weights[name]} if client.data.client % 2 else {}
