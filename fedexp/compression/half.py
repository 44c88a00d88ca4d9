"""Compression to 16-bit floating-point numbers."""

from typing import Literal

import torch
from torch import Generator, Tensor

from fedexp.compression.compressor import Compressor
from fedexp.contract import Memory, Tensors


class Half(Compressor):
    """Rounds each entry to 16 bits.

    ``float16`` has 11 significant bits and the largest value 65504. If an entry of an
    update is larger, the update is refused; if one of a download is, the model is downloaded whole.
    ``bfloat16`` has 8 significant bits and the range of float32.

    Args:
        dtype: the 16-bit type in which the entries are sent.
        error_feedback: whether the sender first adds what compression lost in earlier rounds.
    """

    def __init__(self, dtype: Literal["float16", "bfloat16"], error_feedback: bool) -> None:
        self.dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16}[dtype]
        self.error_feedback = error_feedback

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The rounded ``value``."""
        return {"value": value.to(self.dtype)}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The rounded entries in the type of ``like``."""
        return code["value"].to(like.dtype)
