"""Angles between vectors, for samplers that compare clients by the directions of their updates."""

from torch import Tensor

from fedexp.core.cosines import cosines


def angles_between(rows: Tensor, columns: Tensor) -> Tensor:
    """[N, M] angles of ``rows`` [N, D] with ``columns`` [M, D]: radians in [0, pi], float64.

    A zero vector has a right angle with every vector, also with another zero vector.
    """
    return cosines(rows, columns).acos_()
