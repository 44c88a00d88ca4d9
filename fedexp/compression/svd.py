"""FedKD's compression: each matrix is sent by its largest singular values."""

from __future__ import annotations

import torch
from pydantic import PositiveInt
from torch import Generator, Tensor

from fedexp.compression.compressor import Compressor
from fedexp.config.schema import ShareBelowOne
from fedexp.contract import Memory, Tensors


class SingularValues(Compressor):
    """Sends the K largest singular values of a matrix (Wu et al., Nature Communications 2022).

    K is the smallest number of singular values whose squares have more than a share T of the sum of
    all squares. In round t of R rounds, $T = first + (last - first) t / R$. The sender computes the
    singular value decomposition, and sends the K left singular vectors times their singular values,
    and the K right singular vectors. A tensor with more than two dimensions counts as a matrix
    [first dimension, all others]. A tensor is sent uncompressed if these vectors together would not
    be smaller. What is not sent is lost.

    Args:
        first: T before the first round.
        last: T in round R and later.
        rounds: R.
    """

    def __init__(self, first: ShareBelowOne, last: ShareBelowOne, rounds: PositiveInt) -> None:
        self.first, self.last, self.rounds = first, last, rounds
        self.share = first

    def in_round(self, round: int) -> SingularValues:
        """The compressor with the share T of this round."""
        share = self.first + (self.last - self.first) * min(round / self.rounds, 1)
        return SingularValues(share, share, 1)

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """Matrices ``p`` [n, K], ``q`` [m, K] with p q^T near ``value``, or ``value`` itself."""
        if value.ndim < 2 or not value.isfinite().all():  # which has no singular values
            return {"value": value}
        left, singular, right = torch.linalg.svd(value.flatten(1), full_matrices=False)
        k = number_of_values(singular, self.share)
        if k * (left.shape[0] + right.shape[1]) >= value.numel():
            return {"value": value}
        return {"p": left[:, :k] * singular[:k], "q": right[:k].T.contiguous()}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The product of the two matrices, or the tensor that was sent uncompressed."""
        if "value" in code:
            return code["value"]
        return (code["p"] @ code["q"].T).view_as(like)


def number_of_values(singular: Tensor, share: float) -> int:
    """The smallest number of values with more than a ``share`` of the sum of all squares.

    It is 0 if all values are 0.

    Args:
        singular: the singular values in descending order.
        share: from 0, less than 1.
    """
    sums = singular.double().square().cumsum(dim=0)
    return int(((sums <= share * sums[-1]).sum() + 1) * (sums[-1] > 0))
