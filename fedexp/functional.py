"""The global model as a pure function, for parts that must run it beside what is being trained."""

from torch import Tensor
from torch.func import functional_call

from fedexp.client import ClientModule
from fedexp.heads.base import Head
from fedexp.messages import Message, Tensors
from fedexp.parts import Functional


def functional(module: ClientModule, message: Message) -> Functional:
    """The global model of ``message``, with whatever weights it is called with.

    It is in eval mode: no dropout, and BatchNorm keeps to the statistics in the message. Its head
    is as the message has it, not as ``module`` has adapted it to a client. Weights that stay with
    the clients are those of ``module``.

    Args:
        module: the resident module; it is the same before and after each call.
        message: where the weights come from that a call does not give.
    """
    derived = {f"head.{name}": value for name, value in _received(module.head, message).items()}
    shared = {name: weight.detach() for name, weight in message.weights.items()} | derived

    def logits(weights: Tensors, inputs: Tensor) -> Tensor:
        training = module.training
        module.eval()
        try:
            found: Tensor = functional_call(module, shared | weights, (inputs,))
        finally:
            module.train(training)
        return found

    return logits


def _received(head: Head, message: Message) -> Tensors:
    """What the head derives from the message; what it had derived before comes back."""
    before = {name: head.get_buffer(name).clone() for name in head.derived}
    head.receive(message)
    received = {name: head.get_buffer(name).clone() for name in head.derived}
    for name, value in before.items():
        head.get_buffer(name).copy_(value)
    return received
