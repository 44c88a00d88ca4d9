import pytest
import torch
from torch import Tensor

from fedexp.measures.parameter_plane import filter_normalized, flatten, plane_through

ORIGIN = {"w": torch.tensor([[1.0, 2.0], [0.0, 4.0]]), "b": torch.tensor([1.0])}


def moved(step: list[float]) -> dict[str, Tensor]:
    return {
        "w": ORIGIN["w"] + torch.tensor(step[:4]).view(2, 2),
        "b": ORIGIN["b"] + torch.tensor(step[4:]),
    }


def draw() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_the_plane_goes_through_the_models_and_keeps_distances() -> None:
    first, second = moved([3.0, 0.0, 0.0, 0.0, 4.0]), moved([3.0, 0.0, 2.0, 0.0, -1.0])
    plane = plane_through(ORIGIN, [first, second], draw())
    assert plane.is_random == (False, False)
    assert plane.project(ORIGIN) == (0, 0)
    assert plane.project(first) == pytest.approx((5, 0), abs=1e-5)
    # the second one along the first: (3 * 3 - 4) / 5 = 1; its length is sqrt(14)
    x, y = plane.project(second)
    assert (x, y) == pytest.approx((1, 13**0.5), abs=1e-5)
    for name, value in plane.at(x, y).items():
        torch.testing.assert_close(value, second[name])


@pytest.mark.parametrize("models", [1, 2, 0])
def test_random_directions_replace_those_that_are_missing_or_parallel(models: int) -> None:
    others = [moved([3.0, 0.0, 0.0, 0.0, 4.0]), moved([-1.5, 0.0, 0.0, 0.0, -2.0])][:models]
    plane = plane_through(ORIGIN, others, draw())
    assert plane.is_random == (models == 0, True)
    torch.testing.assert_close(plane.basis @ plane.basis.T, torch.eye(2))
    for other, x in zip(others, (5.0, -2.5), strict=False):
        assert plane.project(other) == pytest.approx((x, 0), abs=1e-5)


def test_filters_have_the_lengths_of_the_models_and_biases_stay() -> None:
    parameters = {
        "conv": torch.arange(12.0).view(2, 3, 2, 1),
        "bias": torch.ones(2),
        "dead": torch.zeros(1, 4),
    }
    direction = filter_normalized(parameters, draw())
    assert direction["bias"].tolist() == [0, 0]
    assert direction["dead"].tolist() == [[0, 0, 0, 0]]
    # 0 + 1 + 4 + 9 + 16 + 25 = 55 and 36 + 49 + 64 + 81 + 100 + 121 = 451
    lengths = [each.square().sum().item() for each in direction["conv"]]
    assert lengths == pytest.approx([55, 451])
    assert flatten(direction).shape == (18,)
