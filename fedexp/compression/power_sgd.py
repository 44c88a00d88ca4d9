"""PowerSGD: each matrix is replaced by a product of two thin ones."""

import torch
from pydantic import PositiveInt
from torch import Generator, Tensor

from fedexp.compression.compressor import Compressor
from fedexp.contract import Memory, Tensors
from fedexp.core.transfer import to_device


class PowerSGD(Compressor):
    """Approximates matrices M by power iteration (Vogels et al., NeurIPS 2019, Alg. 1).

    Each round makes one step of power iteration. Q starts from the Q of the last round, or in the
    first round from random numbers. The sender computes $P = M Q$, makes the columns of P
    orthonormal, and computes the new $Q = M^T P$. The receiver gets $P Q^T$, a projection of M:
    $||M - P Q^T|| <= ||M||$. A tensor with more than two dimensions counts as a matrix [first
    dimension, all others]. A tensor is sent uncompressed if P and Q together would not be smaller.

    In the released code P and Q are averaged over the workers, and a worker's compression error is
    M minus the product of the averages. Here each sender compresses by itself, and its error is
    $M - P Q^T$. The order of the steps is the same.

    Args:
        rank: r, the number of columns of P and Q.
        warm_start: whether Q starts from the Q of the last round. If false, Q starts from random
            numbers in each round.
        error_feedback: whether the sender first adds what compression lost in earlier rounds.
    """

    def __init__(self, rank: PositiveInt, warm_start: bool, error_feedback: bool) -> None:
        self.rank, self.warm_start, self.error_feedback = rank, warm_start, error_feedback

    def encode(self, value: Tensor, memory: Memory, generator: Generator) -> Tensors:
        """Matrices ``p`` [n, r], ``q`` [m, r] with p q^T near ``value``, or ``value`` itself."""
        if not self._is_smaller(value):
            return {"value": value}
        matrix = value.flatten(1)
        start = memory.get("q")
        if start is None:
            drawn = torch.randn(matrix.shape[1], self.rank, generator=generator)
            start = to_device(drawn, matrix.device).to(matrix.dtype)
        p = torch.linalg.qr(matrix @ start).Q
        q = matrix.T @ p
        if self.warm_start:
            memory["q"] = q
        return {"p": p, "q": q}

    def decode(self, code: Tensors, like: Tensor, generator: Generator) -> Tensor:
        """The product P Q^T of the two thin matrices, or the tensor that was sent uncompressed."""
        if "value" in code:
            return code["value"]
        return (code["p"] @ code["q"].T).view_as(like)

    def _is_smaller(self, value: Tensor) -> bool:
        """Whether the two thin matrices P and Q have fewer entries than the tensor."""
        if value.ndim < 2:
            return False
        rows = len(value)
        return self.rank * (rows + value.numel() // rows) < value.numel()
