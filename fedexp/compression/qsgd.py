"""QSGD: rounds entries at random to a few levels, without changing their expected value."""

from typing import Annotated

import torch
from pydantic import Field, PositiveInt
from torch import Generator, Tensor
from torch.nn.functional import pad

from fedexp.compression.bits import pack, unpack
from fedexp.compression.compressor import Compressor
from fedexp.contract import Memory, Tensors
from fedexp.core.transfer import to_device

Bits = Annotated[int, Field(ge=2, le=16)]


class QSGD(Compressor):
    """Stochastic rounding to s levels of the norm (Alistarh et al., NeurIPS 2017, Section 3.1).

    An entry x_i of a vector x becomes $||x|| sign(x_i) l / s$. l is one of the two whole numbers
    next to $s |x_i| / ||x||$, drawn at random so that the mean of l is $s |x_i| / ||x||$. So the
    mean of the result C(x) is x, and the mean of $||x - C(x)||^2$ is at most
    $min(d / s^2, sqrt(d) / s) ||x||^2$. Here x has the d entries of one bucket, which share the
    norm $||x||$. Codes have a fixed width here, in place of the paper's Elias code. There is no
    error feedback: the errors can be larger than x, and would grow from round to round. The paper's
    text was not at hand for a comparison; the rounding agrees with an implementation by the authors
    of Top-k.

    Args:
        bits: number of bits for an entry: its sign and its level l, from 0 to
            s = 2^(bits - 1) - 1.
        bucket: d, the number of consecutive entries that share a norm. If None, all entries of a
            tensor share one norm.
    """

    def __init__(self, bits: Bits, bucket: PositiveInt | None) -> None:
        self.bits, self.bucket = bits, bucket
        self._levels = 2 ** (bits - 1) - 1

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The buckets' ``norms``, and the packed ``codes``: each entry's signed level plus s."""
        rows = self._in_buckets(value.flatten())
        norms = rows.norm(dim=1)
        exact = (rows.abs() / norms.unsqueeze(1) * self._levels).nan_to_num(nan=0.0)
        drawn = to_device(torch.rand(rows.shape, generator=generator), rows.device)
        rounded = (exact.floor() + (drawn < exact - exact.floor())).clamp(max=self._levels)
        codes = (rounded * rows.sign().nan_to_num() + self._levels).flatten()[: value.numel()]
        return {"norms": norms, "codes": pack(codes, self.bits)}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The rounded entries, in the shape of ``like``."""
        codes = unpack(code["codes"], self.bits, like.numel()) - self._levels
        rows = self._in_buckets(codes.to(like.dtype) / self._levels)
        return (rows * code["norms"].unsqueeze(1)).flatten()[: like.numel()].view_as(like)

    def _in_buckets(self, flat: Tensor) -> Tensor:
        """Reshape to [buckets, entries of a bucket]; the last bucket is filled up with zeros."""
        size = min(self.bucket or len(flat), len(flat))
        return pad(flat, (0, -len(flat) % size)).view(-1, size)
