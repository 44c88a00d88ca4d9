"""Packs whole numbers of a few bits each into bytes."""

import torch
from torch import Tensor


def width_for(count: int) -> int:
    """The smallest number of bits that fits every number below ``count``, at least 1."""
    return max(1, (count - 1).bit_length())


def pack(numbers: Tensor, width: int) -> Tensor:
    """Pack n whole numbers of ``width`` bits each into bytes, the highest bit first.

    Returns:
        uint8 [ceil(n * width / 8)]; the last byte is filled up with zeros.
    """
    shifts = torch.arange(width - 1, -1, -1, device=numbers.device)
    bits = (numbers.to(torch.int64).unsqueeze(1) >> shifts & 1).to(torch.uint8).flatten()
    bits = torch.nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    return (bits << _shifts(8, bits)).sum(dim=1, dtype=torch.uint8)


def unpack(packed: Tensor, width: int, count: int) -> Tensor:
    """Inverse of ``pack``: ``count`` numbers, int64 [count]."""
    bits = (packed.unsqueeze(1) >> _shifts(8, packed) & 1).flatten()
    bits = bits[: count * width].view(count, width).to(torch.int64)
    return (bits << _shifts(width, bits)).sum(dim=1)


def _shifts(width: int, like: Tensor) -> Tensor:
    """The numbers ``width`` - 1, ..., 1, 0 in a tensor with the type and device of ``like``."""
    return torch.arange(width - 1, -1, -1, dtype=like.dtype, device=like.device)
