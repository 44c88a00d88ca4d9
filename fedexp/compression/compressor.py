"""The contract of a compressor: it encodes one tensor, and decodes it at the receiver."""

from torch import Generator, Tensor

from fedexp.core.messages import Tensors
from fedexp.core.part import Memory


class Compressor:
    """Encodes tensors; the base class leaves them as they are: ``compression=none``.

    Annotate the constructor's arguments with pydantic types.

    Attributes:
        error_feedback: whether the sender adds what was lost in earlier rounds to the next tensor.
    """

    error_feedback: bool = False

    @property
    def is_none(self) -> bool:
        """Whether nothing is compressed."""
        return type(self).encode is Compressor.encode

    def check(self, key: str) -> None:
        """Raise InputError if hyper-parameters do not fit together; the error names ``key``."""

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The tensors to send in place of ``value``.

        Args:
            value: a float tensor with at least one element.
            memory: the sender's own tensors for this weight, kept between rounds.
            generator: source of random draws, on the CPU.
        """
        return {"value": value}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The tensor that the receiver gets.

        Args:
            code: the result of ``encode``.
            like: a tensor with the shape, type and device of the result.
            generator: a generator with the same seed as for ``encode``.
        """
        return code["value"]
