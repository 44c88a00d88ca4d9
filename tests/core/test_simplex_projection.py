"""The nearest point of the simplex: by hand, and by the conditions that it meets."""

import numpy as np
import pytest
import torch

from fedexp.core.simplex_projection import nearest_in_simplex


def test_the_nearest_point_by_hand() -> None:
    def near(*values: float) -> list[float]:
        found: list[float] = nearest_in_simplex(torch.tensor(values, dtype=torch.float64)).tolist()
        return found

    assert near(0.2, 0.3, 0.5) == pytest.approx([0.2, 0.3, 0.5])  # it is there
    assert near(1.2, 0.4, -3) == pytest.approx([0.9, 0.1, 0])
    assert near(5, 0, 1) == [1, 0, 0]
    assert near(-7) == [1]


def test_no_point_of_the_simplex_is_nearer() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        point = torch.from_numpy(draw.normal(size=6))
        found = nearest_in_simplex(point)
        assert found.min() >= 0
        assert found.sum().item() == pytest.approx(1)
        others = torch.from_numpy(draw.dirichlet(np.full(6, 0.3), size=200))
        assert ((others - point).norm(dim=1) >= (found - point).norm() - 1e-12).all()


def test_the_nearest_point_of_each_row() -> None:
    points = torch.tensor([[0.5, 0.5, 0], [2, 0, 0], [1, 1, 0], [0, 0, 0], [0.2, 0.4, -9]])
    third = 1 / 3
    expected = [[0.5, 0.5, 0], [1, 0, 0], [0.5, 0.5, 0], [third] * 3, [0.4, 0.6, 0]]
    torch.testing.assert_close(nearest_in_simplex(points.double()), torch.tensor(expected).double())
