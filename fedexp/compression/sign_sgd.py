"""signSGD: sends only the signs of each tensor, and one magnitude."""

from torch import Generator, Tensor

from fedexp.compression.bits import pack, unpack
from fedexp.compression.compressor import Compressor
from fedexp.contract import Memory, Tensors


class SignSGD(Compressor):
    """Sends a tensor x as $C(x) = mean(|x|) sign(x)$, with one bit for each entry.

    The scaled sign is the compressor of EF-signSGD (Karimireddy et al., ICML 2019), after signSGD
    (Bernstein et al., ICML 2018). A tensor of d entries has the error
    $||x - C(x)||^2 = ||x||^2 - ||x||_1^2 / d$. The sign of 0 counts as positive; in the released
    code of EF-signSGD it is 0, which one bit cannot say.

    Args:
        error_feedback: whether the sender first adds what compression lost in earlier rounds.
    """

    def __init__(self, error_feedback: bool) -> None:
        self.error_feedback = error_feedback

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The packed ``signs`` of the entries, and their common ``magnitude`` [1]."""
        flat = value.flatten()
        return {"signs": pack(flat >= 0, width=1), "magnitude": flat.abs().mean().view(1)}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """A tensor with plus or minus the magnitude at every entry."""
        signs = 2 * unpack(code["signs"], 1, like.numel()) - 1
        return (signs * code["magnitude"]).to(like.dtype).view_as(like)
