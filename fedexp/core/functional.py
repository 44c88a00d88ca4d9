"""The global model as a pure function, for parts that run it during local training."""

from typing import cast

from torch import Tensor
from torch.func import functional_call

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
    received = _received(cast(Head, client.head), message)
    derived = {f"head.{name}": value for name, value in received.items()}
    shared = {name: weight.detach() for name, weight in message.weights.items()} | derived

    def logits(weights: Tensors, inputs: Tensor) -> Tensor:
        return client.logits_with(shared | weights, inputs)

    return logits


def functional_head(head: Head, message: Message) -> Functional:
    """The head of the global model of ``message`` as a function of weights and features z [B, d].

    It is in eval mode and has the state that ``receive`` gives it. The weights are named as in
    ``ClientModule.weights``; those of the backbone are ignored. A call does not change ``head``.
    """
    derived = _received(head, message)

    def logits(weights: Tensors, z: Tensor) -> Tensor:
        own = {n.removeprefix("head."): w for n, w in weights.items() if n.startswith("head.")}
        training = head.training
        head.eval()
        try:
            found: Tensor = functional_call(head, derived | own, (z,))
        finally:
            head.train(training)
        return found

    return logits


def _received(head: Head, message: Message) -> Tensors:
    """The head's derived buffers under the message; the head itself does not change."""
    before = {name: head.get_buffer(name).clone() for name in head.derived}
    head.receive(message)
    received = {name: head.get_buffer(name).clone() for name in head.derived}
    for name, value in before.items():
        head.get_buffer(name).copy_(value)
    return received
