"""Rand-k: only entries at random places are sent."""

import torch
from torch import Generator, Tensor

from fedexp.compression.compressor import Compressor
from fedexp.compression.top_k import kept, scattered
from fedexp.config.schema import PositiveShare
from fedexp.contract import Memory, Tensors
from fedexp.core.transfer import to_device
from fedexp.errors import InputError


class RandK(Compressor):
    """Sends k random entries of each tensor (Stich et al., NeurIPS 2018).

    Server and client draw the places from the run's seed, the round and the client's number, so
    only the values are sent. With ``unbiased`` the values of a tensor x of d entries are multiplied
    by $d / k$. Then the mean of the result C(x) is x, and the mean of $||x - C(x)||^2$ is
    $(d/k - 1) ||x||^2$. Without ``unbiased``, the mean of $||x - C(x)||^2$ is $(1 - k/d) ||x||^2$.
    The released code has no factor $d / k$ and adds the errors to the next gradient: for this, set
    ``unbiased`` to false and ``error_feedback`` to true.

    Args:
        share: k / d, for a tensor of d entries. k is rounded down, and at least 1.
        unbiased: whether the values are multiplied by d / k.
        error_feedback: whether the sender first adds what compression lost in earlier rounds.
    """

    def __init__(self, share: PositiveShare, unbiased: bool, error_feedback: bool) -> None:
        if unbiased and error_feedback:
            raise InputError(
                "error_feedback=true: the errors of unbiased values are larger than the tensor "
                "and would grow from round to round; should be false, or unbiased=false"
            )
        self.share, self.unbiased, self.error_feedback = share, unbiased, error_feedback

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """The ``values`` [k] of the k entries that are sent."""
        flat = value.flatten()
        values = flat[self._places(value, generator)]
        return {"values": values * (len(flat) / len(values)) if self.unbiased else values}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The entries that were sent, at their places in a tensor of zeros."""
        return scattered(code["values"], self._places(like, generator), like)

    def _places(self, like: Tensor, generator: Generator) -> Tensor:
        """The flat indices [k] of the k entries that are sent."""
        entries = like.numel()
        drawn = torch.randperm(entries, generator=generator)[: kept(entries, self.share)]
        return to_device(drawn, like.device)
