"""Sends weights as encoded differences from the weights that the receiver has."""

from collections.abc import Collection
from dataclasses import replace

from torch import Generator, Tensor

from fedexp.compression.compressor import Compressor
from fedexp.core import results
from fedexp.core.messages import Message, Tensors, Update, count_bytes
from fedexp.core.named_tensors import prefixed, with_prefix
from fedexp.core.part import Memory
from fedexp.core.randomness import torch_generator

_AS_IT_IS = "weight"
"""The key of the tensor of a weight that is sent uncompressed."""

Encoded = dict[str, Tensors]
"""Weights on their way: name of a weight -> the code of its difference, or the weight itself."""


class Differences:
    """Encodes weights at the sender and decodes them at the receiver.

    Only trained parameters are compressed. Buffers, such as the running statistics of BatchNorm,
    are sent uncompressed. A weight that the receiver does not have yet is sent uncompressed, too.

    Args:
        compressor: encodes one tensor.
        names: names of the trained parameters.
        seed: seed of the run.
        purpose: a name for the random draws; draws with different names are independent.
        feedback: whether the sender keeps the lost part of a difference and adds it to the next
            one.
    """

    def __init__(
        self,
        compressor: Compressor,
        names: Collection[str],
        seed: int,
        purpose: str,
        feedback: bool,
    ) -> None:
        self._compressor, self._feedback = compressor, feedback
        self._numbers = {name: number for number, name in enumerate(sorted(names))}
        self._seed, self._purpose = seed, purpose

    def send(self, update: Update, message: Message, memory: Memory) -> Update:
        """A client's update as the server decodes it, with the bytes of its encoded form.

        Args:
            update: the client's update.
            message: the message to this client, with the weights that it started from.
            memory: the client's memory. With ``feedback`` it keeps what compression lost.
        """
        base, key = message.weights, (message.round, update.client)
        encoded = self.encode(update.weights, base, memory, *key)
        weights = self.decode(encoded, base, *key)
        return replace(update, weights=weights, weights_nbytes=count_bytes(*encoded.values()))

    def encode(self, weights: Tensors, base: Tensors, memory: Memory, *key: int) -> Encoded:
        """Encode ``weights`` as differences from ``base``.

        Args:
            weights: the sender's weights.
            base: the weights that the receiver has.
            memory: the tensors that the sender keeps between rounds; the lost parts of the
                differences are stored there.
            key: the round, and for an upload also the client. It seeds the random draws.
        """
        tensors = {}
        for name, weight in weights.items():
            if self.compresses(name, base):
                tensors[name] = self._encode(name, weight - base[name], memory, key)
            else:
                tensors[name] = {_AS_IT_IS: weight}
        return tensors

    def decode(self, encoded: Encoded, base: Tensors, *key: int) -> Tensors:
        """The weights that the receiver gets; the arguments are as for ``encode``."""
        weights = {}
        for name, code in encoded.items():
            if self.compresses(name, base):
                weights[name] = base[name] + self._decode(name, code, base[name], key)
            else:
                weights[name] = code[_AS_IT_IS]
        return weights

    def compresses(self, name: str, base: Tensors) -> bool:
        """Whether the weight is sent as an encoded difference from ``base``."""
        return name in self._numbers and name in base and base[name].numel() > 0

    def _encode(
        self, name: str, difference: Tensor, memory: Memory, key: tuple[int, ...]
    ) -> Tensors:
        """Encode a difference plus the part of earlier differences that compression lost."""
        own = with_prefix(name, memory)
        lost = own.pop("lost", None)
        value = difference if lost is None else difference + lost
        compressor = self._compressor.in_round(key[0])
        code = compressor.encode(value, own, self._generator(name, key))
        results.tensors(code, self._purpose, self._compressor, "encode(...)")
        if self._feedback:
            own["lost"] = value - self._decode(name, code, value, key)
        results.memory(own, self._purpose, self._compressor)
        memory.update(prefixed(name, own))
        return code

    def _decode(self, name: str, code: Tensors, like: Tensor, key: tuple[int, ...]) -> Tensor:
        decoded = self._compressor.decode(code, like, self._generator(name, key))
        whose = self._purpose, self._compressor, "decode(...)"
        return results.alike(decoded, like, name, *whose)

    def _generator(self, name: str, key: tuple[int, ...]) -> Generator:
        return torch_generator(self._seed, self._purpose, *key, self._numbers[name])
