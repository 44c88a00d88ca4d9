"""The contract of a compressor: it encodes one tensor, and decodes it at the receiver."""

from __future__ import annotations

from torch import Generator, Tensor

from fedexp.contract import Memory, Tensors


class Compressor:
    """Encodes tensors; this base class (``compression=none``) leaves tensors unchanged.

    In a subclass, annotate the constructor's arguments with pydantic types.

    Attributes:
        error_feedback: whether the sender adds the compression errors of earlier rounds to the next
            tensor.
    """

    error_feedback: bool = False

    @property
    def is_none(self) -> bool:
        """Whether nothing is compressed."""
        return type(self).encode is Compressor.encode

    def in_round(self, round: int) -> Compressor:
        """The compressor that encodes in this round, counted from 1; by default this one."""
        return self

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The tensors to send in place of ``value``.

        Args:
            value: a float tensor with at least one element.
            memory: the tensors that the sender keeps between rounds for this weight.
            generator: source of random draws, on the CPU.
        """
        return {"value": value}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """Turn the code back into a tensor, at the receiver.

        Args:
            code: the result of ``encode``.
            like: a tensor with the shape, type and device of the result.
            generator: a generator with the same seed as for ``encode``.
        """
        return code["value"]
