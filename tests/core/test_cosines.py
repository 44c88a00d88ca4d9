"""Cosines between the rows of two matrices."""

import torch

from fedexp.core.cosines import cosines


def test_cosines_are_exact_for_parallel_and_orthogonal_vectors() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    columns = torch.tensor([[6.0, 8.0], [-1.0, 0.0], [-3.0, -4.0]])
    expected = [[1.0, -0.6, -1.0], [0.8, 0.0, -0.8]]
    assert torch.allclose(cosines(rows, columns), torch.tensor(expected).double())


def test_the_cosine_with_a_zero_vector_is_zero() -> None:
    zero, other = torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 3.0]])
    assert cosines(zero, torch.cat([zero, other])).tolist() == [[0.0, 0.0]]


def test_tiny_vectors_keep_their_direction() -> None:
    tiny = torch.tensor([[1e-30, 0.0]])
    assert cosines(tiny, tiny).tolist() == [[1.0]]
