"""The global model as a pure function, for parts that must run it beside what is being trained."""

from typing import cast

from torch import Tensor

from fedexp.core.hook_view import Client
from fedexp.core.messages import Message, Tensors
from fedexp.core.part import Functional
from fedexp.core.sockets import Head


def functional(client: Client, message: Message) -> Functional:
    """The global model of ``message``, with whatever weights it is called with.

    It is in eval mode: no dropout, and BatchNorm keeps to the statistics in the message. Its head
    is as the message has it, not as ``client`` has adapted it to a client. Weights that stay with
    the clients are those of ``client``.

    Args:
        client: the resident module; it is the same before and after each call.
        message: where the weights come from that a call does not give.
    """
    derived = {
        f"head.{name}": value for name, value in _received(cast(Head, client.head), message).items()
    }
    shared = {name: weight.detach() for name, weight in message.weights.items()} | derived

    def logits(weights: Tensors, inputs: Tensor) -> Tensor:
        return client.logits_with(shared | weights, inputs)

    return logits


def _received(head: Head, message: Message) -> Tensors:
    """What the head derives from the message; what it had derived before comes back."""
    before = {name: head.get_buffer(name).clone() for name in head.derived}
    head.receive(message)
    received = {name: head.get_buffer(name).clone() for name in head.derived}
    for name, value in before.items():
        head.get_buffer(name).copy_(value)
    return received
