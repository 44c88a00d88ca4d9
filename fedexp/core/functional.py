"""The global model as a pure function, for parts that run it during local training."""

from typing import cast

from torch import Tensor

from fedexp.core.client_protocol import Client
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Functional
from fedexp.core.sockets import Head


def functional(client: Client, message: Message) -> Functional:
    """The global model of ``message`` as a function of weights and inputs.

    It is in eval mode: no dropout, and BatchNorm uses the statistics in the message. Its head has
    the state that ``receive`` gives it, not what ``begin`` adapts to a client. Private weights are
    those of ``client``.

    Args:
        client: the resident module; a call does not change it.
        message: the weights that a call does not give.
    """
    derived = {
        f"head.{name}": value for name, value in _received(cast(Head, client.head), message).items()
    }
    shared = {name: weight.detach() for name, weight in message.weights.items()} | derived

    def logits(weights: Tensors, inputs: Tensor) -> Tensor:
        return client.logits_with(shared | weights, inputs)

    return logits


def _received(head: Head, message: Message) -> Tensors:
    """The head's derived buffers under the message; the head itself does not change."""
    before = {name: head.get_buffer(name).clone() for name in head.derived}
    head.receive(message)
    received = {name: head.get_buffer(name).clone() for name in head.derived}
    for name, value in before.items():
        head.get_buffer(name).copy_(value)
    return received
