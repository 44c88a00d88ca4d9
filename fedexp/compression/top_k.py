"""Top-k: only the entries with the largest magnitudes are sent."""

from torch import Generator, Tensor

from fedexp.compression.bits import pack, unpack, width_for
from fedexp.compression.compressor import Compressor
from fedexp.config.schema import PositiveShare
from fedexp.contract import Memory, Tensors
from fedexp.rounding import rounded_down


class TopK(Compressor):
    """Sends the k largest-magnitude entries of each tensor (Stich et al., NeurIPS 2018).

    All other entries of a tensor x count as zero. The result C(x) satisfies
    $||x - C(x)||^2 <= (1 - k/d) ||x||^2$ if x has d entries. Each entry is sent as its value and
    its index; an index takes ceil(log2 d) bits. The paper's x is the whole gradient; here each
    tensor is compressed by itself.

    Args:
        share: k / d, for a tensor of d entries. k is rounded down, and at least 1.
        error_feedback: whether the sender first adds what compression lost in earlier rounds.
    """

    def __init__(self, share: PositiveShare, error_feedback: bool) -> None:
        self.share, self.error_feedback = share, error_feedback

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The k entries to send: ``values`` [k], and packed ``indices`` in ascending order."""
        flat = value.flatten()
        largest = flat.abs().topk(kept(len(flat), self.share)).indices.sort().values
        return {"values": flat[largest], "indices": pack(largest, width_for(len(flat)))}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The entries that were sent, at their places in a tensor of zeros."""
        values, width = code["values"], width_for(like.numel())
        return scattered(values, unpack(code["indices"], width, len(values)), like)


def kept(entries: int, share: float) -> int:
    """k, the number of entries to send."""
    return max(1, rounded_down(share, entries))


def scattered(values: Tensor, indices: Tensor, like: Tensor) -> Tensor:
    """``values`` at their flat ``indices`` in a tensor of zeros with the shape of ``like``."""
    flat = like.new_zeros(like.numel())
    flat[indices] = values
    return flat.view_as(like)
