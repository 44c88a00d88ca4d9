"""The global model as a pure function, for parts that run it during local training."""

from typing import cast

from torch import Tensor, nn
from torch.func import functional_call

from fedexp.core.client_protocol import Client, Functional
from fedexp.core.messages import Message, Tensors
from fedexp.core.sockets import Head


def functional(client: Client, message: Message) -> Functional:
    """The global model of ``message`` as a function of weights and inputs.

    The model is in eval mode: no dropout, and BatchNorm uses the statistics in the message. The
    head is in the state that ``receive`` sets; ``begin`` does not adapt the head to a client.
    Private weights come from ``client``.

    Args:
        client: the resident module; a call of the function does not change it.
        message: gives the values of all shared weights that a call of the function does not pass.
    """
    received = _received(cast(Head, client.head), message)
    derived = {f"head.{name}": value for name, value in received.items()}
    shared = {name: weight.detach() for name, weight in message.weights.items()} | derived

    def logits(weights: Tensors, inputs: Tensor) -> Tensor:
        return client.logits_with(shared | weights, inputs)

    return logits


def functional_head(head: Head, message: Message) -> Functional:
    """The head as a function of weights and features z [B, d].

    The head is in eval mode and in the state that ``receive`` sets for ``message``. Weights have
    the names of ``ClientModule.weights``. Backbone weights are ignored; absent head weights are
    taken from ``head``. A call does not change ``head``.
    """
    derived = _received(head, message)

    def logits(weights: Tensors, z: Tensor) -> Tensor:
        own = {n.removeprefix("head."): w for n, w in weights.items() if n.startswith("head.")}
        return call_in_eval_mode(head, derived | own, z)

    return logits


def call_in_eval_mode(module: nn.Module, weights: Tensors, inputs: Tensor) -> Tensor:
    """The module's output in eval mode with other ``weights``; the module does not change."""
    training = module.training
    module.eval()
    try:
        output: Tensor = functional_call(module, weights, (inputs,))
    finally:
        module.train(training)
    return output


def _received(head: Head, message: Message) -> Tensors:
    """The values that ``head.receive`` would give to the head's derived buffers.

    After the call these buffers have their old values again.
    """
    before = {name: head.get_buffer(name).clone() for name in head.derived}
    head.receive(message.to("head"))
    received = {name: head.get_buffer(name).clone() for name in head.derived}
    for name, value in before.items():
        head.get_buffer(name).copy_(value)
    return received
