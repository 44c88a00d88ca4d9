"""Compressed uploads: a client sends the encoded difference from its start weights."""

from collections.abc import Collection
from dataclasses import replace

from fedexp.compression.compressor import Compressor
from fedexp.compression.differences import Differences
from fedexp.contract import Memory, Message, Update
from fedexp.core.messages import count_bytes

MEMORY = "compression"
"""The name of a client's memory with the lost differences and the compressor's tensors."""


class CompressedUpload:
    """Encodes a client's update, and decodes it as the server does.

    Args:
        compressor: encodes one tensor.
        names: names of the trained parameters.
        seed: seed of the run.
    """

    def __init__(self, compressor: Compressor, names: Collection[str], seed: int) -> None:
        feedback = compressor.error_feedback
        self._differences = Differences(compressor, names, seed, "compression/upload", feedback)

    def send(self, update: Update, message: Message, memory: Memory) -> Update:
        """The update as the server decodes it, with the bytes of its encoded form.

        Args:
            update: the client's update.
            message: the message to this client, with the weights that it started from.
            memory: the client's memory. With error feedback it keeps what compression lost.
        """
        base, key = message.weights, (message.round, update.client)
        encoded = self._differences.encode(update.weights, base, memory, *key)
        weights = self._differences.decode(encoded, base, *key)
        return replace(update, weights=weights, weights_nbytes=count_bytes(*encoded.values()))
