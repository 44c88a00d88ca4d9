import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedexp.regularizers import dsa


def images(*shape: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(*(shape or (2, 3, 5, 6)), generator=draw, dtype=torch.float64)


def each(value: float, count: int = 2) -> Tensor:
    return torch.full((count,), value, dtype=torch.float64)


NEUTRAL: dict[str, Callable[[Tensor], Tensor]] = {
    "color": lambda x: dsa.color(x, each(0), each(1), each(1)),
    "shift": lambda x: dsa.shift(x, each(0).long(), each(0).long()),
    "cutout": lambda x: dsa.cutout(x, each(2).long(), each(2).long(), (0, 0)),
    "flip": lambda x: dsa.flip(x, each(0).bool()),
    "scale": lambda x: dsa.scale(x, each(1), each(1)),
    "rotate": lambda x: dsa.rotate(x, each(0)),
}
CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "color": lambda x: dsa.color(x, each(0.3), each(1.7), each(0.6)),
    "shift": lambda x: dsa.shift(x, torch.tensor([1, -2]), torch.tensor([0, 2])),
    "cutout": lambda x: dsa.cutout(x, torch.tensor([0, 3]), torch.tensor([5, 2]), (2, 3)),
    "flip": lambda x: dsa.flip(x, torch.tensor([True, False])),
    "scale": lambda x: dsa.scale(x, each(1.1), each(0.9)),
    "rotate": lambda x: dsa.rotate(x, each(0.2)),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_neutral_parameters_change_nothing(name: str) -> None:
    torch.testing.assert_close(NEUTRAL[name](images()), images(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", CHANGED)
def test_shape_and_gradient(name: str) -> None:
    x = images().requires_grad_()
    changed = CHANGED[name](x)
    assert changed.shape == x.shape
    assert not torch.allclose(changed, x)
    assert torch.autograd.gradcheck(CHANGED[name], x)


def test_color_by_hand() -> None:
    """Two channels, one row of two pixels: brightness, then gray 3 and 6, then a mean of 4.5."""
    x = torch.tensor([[[[1.0, 4.0]], [[3.0, 6.0]]]])
    bright = x + 1  # channels [2, 5] and [4, 7]: gray 3, 6
    saturated = torch.tensor([[[[1.0, 4.0]], [[5.0, 8.0]]]])  # distances to gray doubled
    found = dsa.color(x, each(1, 1).float(), each(1, 1).float(), each(1, 1).float())
    torch.testing.assert_close(found, bright)
    found = dsa.color(x, each(1, 1).float(), each(2, 1).float(), each(1, 1).float())
    torch.testing.assert_close(found, saturated)
    found = dsa.color(x, each(1, 1).float(), each(2, 1).float(), each(0.5, 1).float())
    torch.testing.assert_close(found, 4.5 + (saturated - 4.5) / 2)


NUMBERED = torch.arange(1.0, 10).view(1, 1, 3, 3)


def test_shift_by_hand() -> None:
    found = dsa.shift(NUMBERED, torch.tensor([1]), torch.tensor([-1]))
    assert found[0, 0].tolist() == [[0, 0, 0], [2, 3, 0], [5, 6, 0]]


def test_cutout_by_hand() -> None:
    found = dsa.cutout(NUMBERED, torch.tensor([1]), torch.tensor([3]), (2, 2))
    assert found[0, 0].tolist() == [[1, 2, 0], [4, 5, 0], [7, 8, 9]]
    found = dsa.cutout(NUMBERED, torch.tensor([0]), torch.tensor([1]), (3, 1))
    assert found[0, 0].tolist() == [[1, 0, 3], [4, 0, 6], [7, 8, 9]]


def test_flip_by_hand() -> None:
    found = dsa.flip(torch.cat([NUMBERED, NUMBERED]), torch.tensor([True, False]))
    assert found[0, 0].tolist() == [[3, 2, 1], [6, 5, 4], [9, 8, 7]]
    assert torch.equal(found[1], NUMBERED[0])


def test_scale_by_hand() -> None:
    """At half the distance to the centre the corners are means of four pixels."""
    found = dsa.scale(NUMBERED, each(0.5, 1).float(), each(0.5, 1).float())
    assert found[0, 0].tolist() == [[3, 3.5, 4], [4.5, 5, 5.5], [6, 6.5, 7]]
    found = dsa.scale(NUMBERED, each(2, 1).float(), each(1, 1).float())
    assert found[0, 0].tolist() == [[0, 0, 0], [4, 5, 6], [0, 0, 0]]


def test_rotate_by_hand() -> None:
    found = dsa.rotate(NUMBERED, each(math.pi / 2, 1).float())
    expected = torch.rot90(NUMBERED[0, 0])
    torch.testing.assert_close(found[0, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("angle", [0.25, -0.1])
def test_scale_and_rotate_are_affine_samplings(angle: float) -> None:
    x = images(2, 3, 6, 6)
    sine, cosine = math.sin(angle), math.cos(angle)
    for found, matrix in (
        (dsa.rotate(x, each(angle)), [[cosine, -sine, 0], [sine, cosine, 0]]),
        (dsa.scale(x, each(1.15), each(0.9)), [[0.9, 0, 0], [0, 1.15, 0]]),
    ):
        theta = torch.tensor([matrix, matrix], dtype=x.dtype)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        expected = F.grid_sample(x, grid, align_corners=False)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def drawn(seed: int, shape: tuple[int, ...] = (40, 1, 8, 8)) -> dsa.Transform:
    return dsa.draw_transform(shape, torch.Generator().manual_seed(seed))


def test_a_drawn_transform_is_the_same_at_every_call() -> None:
    x = images(40, 1, 8, 8)
    for seed in range(12):
        transform = drawn(seed)
        assert torch.equal(transform(x), transform(x))
        assert torch.equal(transform(x), drawn(seed)(x))
        assert transform(x).shape == x.shape


def test_all_operations_are_drawn_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    names = Counter(dsa.draw_transform((1, 1, 8, 8), generator).__qualname__ for _ in range(1200))
    assert len(names) == 6
    assert min(names.values()) > 150


def spread(name: str, x: Tensor) -> Tensor:
    """What one operation with drawn parameters makes of ``x``."""
    draw = getattr(dsa, f"_draw_{name}")
    made: Tensor = draw(tuple(x.shape), torch.Generator().manual_seed(1), torch.device("cpu"))(x)
    return made


def test_the_ranges_of_the_parameters() -> None:
    """On images from which the parameters can be read."""
    point = torch.zeros(500, 1, 17, 17)
    point[:, :, 8, 8] = 1
    rows, columns = spread("shift", point).nonzero()[:, 2:].T - 8
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (-2, 2, -2, 2)

    full = torch.ones(500, 1, 8, 8)
    holes = (spread("cutout", full) == 0).sum(dim=(1, 2, 3))
    assert (holes.max(), holes.min()) == (16, 4)

    half = torch.arange(8.0).expand(500, 1, 8, 8)
    flipped = (spread("flip", half)[:, 0, 0, 0] == 7).float().mean()
    assert 0.4 < flipped < 0.6

    plane = torch.arange(9.0).view(1, 1, 1, 9).expand(500, 1, 9, 9) - 4
    slope = spread("scale", plane)[:, 0, 4, 5]
    assert 1 / 1.2 <= slope.min() < 0.85
    assert 1.18 < slope.max() <= 1.2
    turned = spread("rotate", plane)
    angles = torch.atan2(-turned[:, 0, 5, 4], turned[:, 0, 4, 5]).rad2deg()
    assert -15.001 <= angles.min() < -14
    assert 14 < angles.max() <= 15.001

    gray = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2).expand(500, 1, 1, 2)
    colored = spread("color", gray)
    contrast = (colored[..., 1] - colored[..., 0]).flatten()
    brightness = colored.mean(dim=(1, 2, 3)) - 0.5
    assert 0.5 <= contrast.min() < 0.52
    assert 1.48 < contrast.max() <= 1.5
    assert -0.5 <= brightness.min() < -0.48
    assert 0.48 < brightness.max() <= 0.5
