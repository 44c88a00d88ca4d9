"""signSGD: only the signs are sent, and one magnitude for each tensor."""

from torch import Generator, Tensor

from fedexp.compression.bits import pack, unpack
from fedexp.compression.compressor import Compressor
from fedexp.core.messages import Tensors
from fedexp.core.part import Memory


class SignSGD(Compressor):
    """C(x) = mean(|x|) sign(x) for each tensor, one bit an entry.

    The scaled sign is the compressor of EF-signSGD (Karimireddy et al., ICML 2019), after signSGD
    (Bernstein et al., ICML 2018). For d entries ||x - C(x)||^2 = ||x||^2 - ||x||_1^2 / d. The sign
    of 0 counts as positive.

    Args:
        error_feedback: see ``Compressor``.
    """

    def __init__(self, error_feedback: bool) -> None:
        self.error_feedback = error_feedback

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """``signs``, packed, and ``magnitude`` [1]."""
        flat = value.flatten()
        return {"signs": pack(flat >= 0, width=1), "magnitude": flat.abs().mean().view(1)}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """Plus or minus the magnitude."""
        signs = 2 * unpack(code["signs"], 1, like.numel()) - 1
        return (signs * code["magnitude"]).to(like.dtype).view_as(like)
