"""Angles between vectors, for samplers that compare clients by the directions of their updates."""

from torch import Tensor

from fedexp.core.cosines import cosines


def angles_between(rows: Tensor, columns: Tensor) -> Tensor:
    """The angles [N, M] between the vectors ``rows`` [N, D] and the vectors ``columns`` [M, D].

    Angles are in radians from 0 to pi, float64. A zero vector has a right angle with every vector,
    even with another zero vector.
    """
    return cosines(rows, columns).acos_()
