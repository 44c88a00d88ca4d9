import math
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from fedexp.config.compatibility.unread import unread_keys
from fedexp.data.dataset import Split
from fedexp.data.readers.spiral import Spiral

Turn = Literal["equal", "proportional"]


def load(
    noise: float = 0.15,
    turn: Turn = "equal",
    imbalanced: bool = False,
    seed: int = 0,
    noise_law: Literal["normal", "uniform"] = "normal",
    thinning: Literal["subset", "coarser"] = "subset",
    test_points: int = 3000,
) -> tuple[Split, Split]:
    spiral = Spiral(noise, noise_law, turn, imbalanced, thinning, test_points, seed)
    dataset = spiral.load(Path("unused"))
    return dataset.train, dataset.test


def by_radius(split: Split, label: int) -> Tensor:
    """The points of an arm from the inside to the outside."""
    points = split.inputs[split.labels == label]
    return points[points.norm(dim=1).argsort()]


def angular_noise(split: Split) -> Tensor:
    """How far each point is turned from its place without noise, in the direction of the arm."""
    clean = load(noise=0)[0]
    angles = []
    for label in range(6):
        (x, y), (u, v) = by_radius(split, label).T, by_radius(clean, label).T
        angles.append(torch.atan2(x * v - y * u, x * u + y * v))
    return torch.cat(angles)


@pytest.mark.parametrize("turn", ["equal", "proportional"])
@pytest.mark.parametrize(("arm", "point"), [(1, 1), (1, 3000), (2, 1500), (6, 3000)])
def test_points_follow_the_formula(turn: Turn, arm: int, point: int) -> None:
    """Without noise, point i of arm k is known."""
    train, _ = load(noise=0, turn=turn)
    way = (point - 1) / 2999
    turned = math.pi / 3 * (arm if turn == "proportional" else 1)
    angle, radius = arm * math.pi / 3 + way * turned, 1 + 9 * way
    expected = torch.tensor([radius * math.sin(angle), radius * math.cos(angle)])
    torch.testing.assert_close(by_radius(train, arm - 1)[point - 1], expected, rtol=0, atol=1e-5)


def test_shapes_and_types() -> None:
    description = Spiral(0.15, "normal", "equal", False, "subset", 3000, 0).describe()
    assert description.input_shape == (2,)
    assert description.num_classes == 6
    for split in load():
        assert split.inputs.shape == (18000, 2)
        assert (split.inputs.dtype, split.labels.dtype) == (torch.float32, torch.int64)
        assert split.labels.bincount().tolist() == [3000] * 6


def test_noise_is_the_standard_deviation_of_the_angle() -> None:
    """18,000 draws estimate a deviation within 2 % (four standard errors)."""
    assert angular_noise(load(noise=0.15)[0]).std().item() == pytest.approx(0.15, rel=0.02)


def test_uniform_noise_turns_forward_by_less_than_its_range() -> None:
    angles = angular_noise(load(noise=0.5, noise_law="uniform")[0])
    assert -1e-4 < angles.min() < 0.001
    assert 0.499 < angles.max() < 0.5001
    assert angles.mean().item() == pytest.approx(0.25, rel=0.02)
    assert angles.std().item() == pytest.approx(0.5 / math.sqrt(12), rel=0.02)


def test_coarser_arms_are_whole_arms_of_fewer_points() -> None:
    train, test = load(noise=0, imbalanced=True, thinning="coarser", test_points=100)
    assert train.labels.bincount().tolist() == [3000, 1500, 750, 375, 187, 93]
    assert test.labels.bincount().tolist() == [100] * 6
    for split, label, size in [(train, 5, 93), (test, 0, 100)]:
        radii = by_radius(split, label).norm(dim=1)
        torch.testing.assert_close(radii, torch.linspace(1, 10, size))
    # Point 47 of 93 is half-way along arm 6: angle 2 pi + pi/6, radius 5.5.
    half_way = torch.tensor([5.5 * math.sin(math.pi / 6), 5.5 * math.cos(math.pi / 6)])
    torch.testing.assert_close(by_radius(train, 5)[46], half_way, rtol=0, atol=1e-5)


def test_thinning_acts_on_the_test_split_of_balanced_arms() -> None:
    subset, coarser = load(test_points=100)[1], load(thinning="coarser", test_points=100)[1]
    assert not torch.equal(by_radius(subset, 0), by_radius(coarser, 0))
    node = {"_target_": "fedexp.data.readers.spiral.Spiral", "imbalanced": False}
    assert "data.thinning" not in unread_keys({"data": node})


def test_fewer_test_points_are_a_subset_too() -> None:
    test, full = load(test_points=50)[1], load()[1]
    assert test.labels.bincount().tolist() == [50] * 6
    everything = {tuple(point) for point in full.inputs.tolist()}
    assert {tuple(point) for point in test.inputs.tolist()} <= everything


def test_the_default_noise_keeps_the_arms_apart() -> None:
    """At equal radius a point is nearest to its own arm's centre: fewer than 1 in 500 are not."""
    noisy, clean = load()[0], load(noise=0)[0]
    centres = torch.stack([by_radius(clean, label) for label in range(6)])
    for label in range(6):
        distances = (by_radius(noisy, label) - centres).norm(dim=2)
        assert (distances.argmin(dim=0) != label).float().mean() < 1 / 500


def test_imbalanced_training_points_are_a_random_subset() -> None:
    (subset, test), (full, full_test) = load(imbalanced=True), load()
    assert subset.labels.bincount().tolist() == [3000, 1500, 750, 375, 187, 93]
    assert torch.equal(test.inputs, full_test.inputs)
    everything = {tuple(point) for point in full.inputs.tolist()}
    assert {tuple(point) for point in subset.inputs.tolist()} <= everything
    smallest = by_radius(subset, 5).norm(dim=1)
    assert smallest[0] < 2
    assert smallest[-1] > 9


def test_the_seed_decides_every_point_and_the_splits_differ() -> None:
    train, test = load(seed=0)
    again, other = load(seed=0)[0], load(seed=1)[0]
    assert torch.equal(train.inputs, again.inputs)
    assert not torch.equal(train.inputs, other.inputs)
    assert not torch.equal(by_radius(train, 0), by_radius(test, 0))
