"""The robust rules give the numbers of the library byzfl, where their definitions agree."""

from collections.abc import Callable

import byzfl
import pytest
import torch
from torch import Tensor

from fedexp.aggregators.bulyan import selected
from fedexp.aggregators.centered_clipping import CenteredClipping
from fedexp.aggregators.coordinatewise import Median, TrimmedMean, mean_around_median
from fedexp.aggregators.geometric_median import GeometricMedian
from fedexp.aggregators.krum import Krum, squared_distances
from fedexp.core.messages import PartUpdate, Update
from fedexp.core.sockets import Aggregator

F = 2


def theirs(rule: Callable[..., object], points: Tensor) -> Tensor:
    """The result of a rule of byzfl, which would convert tensors to float32, but not arrays."""
    return torch.as_tensor(rule(points.numpy()))


@pytest.fixture(params=[11, 12])
def points(request: pytest.FixtureRequest) -> Tensor:
    generator = torch.Generator().manual_seed(request.param)
    points = torch.randn(request.param, 30, generator=generator, dtype=torch.float64)
    points[:F] += 4
    return points


def merged(rule: Aggregator, points: Tensor) -> Tensor:
    current = {"w": torch.zeros(points.shape[1], dtype=points.dtype)}
    for client, point in enumerate(points):
        rule.add(Update(client, 1, {"w": point}), current)
    return rule.merge(current)["w"]


def test_the_median_of_numpy_arrays(points: Tensor) -> None:
    """Of tensors, byzfl takes the lower of two middle values."""
    torch.testing.assert_close(merged(Median(), points), theirs(byzfl.Median(), points))


def test_the_trimmed_mean(points: Tensor) -> None:
    share = (F + 0.5) / len(points)
    torch.testing.assert_close(merged(TrimmedMean(share), points), theirs(byzfl.TrMean(F), points))


def test_krum_with_one_byzantine_client_more(points: Tensor) -> None:
    """The paper sums over n - f - 2 neighbours, byzfl over n - f - 1."""
    share = (F + 0.5) / len(points)
    torch.testing.assert_close(merged(Krum(share, 1), points), theirs(byzfl.Krum(F + 1), points))
    several = merged(Krum(share, len(points) - F - 1), points)
    torch.testing.assert_close(several, theirs(byzfl.MultiKrum(F + 1), points))


def test_the_geometric_median_from_the_same_start(points: Tensor) -> None:
    """Fedexp starts from the mean, byzfl from zero: the same for points around zero."""
    centred = points - points.mean(dim=0)
    for iterations in (1, 3):
        found = merged(GeometricMedian(iterations, 0.1), centred)
        torch.testing.assert_close(found, theirs(byzfl.GeometricMedian(0.1, iterations), centred))
    found = merged(GeometricMedian(500, 1e-9), points)
    expected = theirs(byzfl.GeometricMedian(1e-9, 500), points)  # both have converged
    torch.testing.assert_close(found, expected, atol=1e-7, rtol=0)


def test_centred_clipping_over_two_rounds(points: Tensor) -> None:
    ours, other = CenteredClipping(3.0, 2), byzfl.CenteredClipping(L=2, tau=3.0)
    for each in (points, points.flip(1)):
        torch.testing.assert_close(merged(ours, each), theirs(other, each))
        ours.commit()


@pytest.mark.parametrize("left_out", [2, 5])
def test_bulyans_second_half_is_the_mean_around_the_median(left_out: int) -> None:
    """Byzfl has no Bulyan, but this half as ``Meamed``; its median of an even number is a mean."""
    points = torch.randn(11, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = mean_around_median(points.sort(dim=0).values, len(points) - left_out)
    torch.testing.assert_close(found, theirs(byzfl.Meamed(left_out), points))


def test_bulyans_first_half_is_krum_again_and_again(points: Tensor) -> None:
    """As far as byzfl goes: it refuses Krum with 2f >= n."""
    updates = [PartUpdate(k, 1, {"w": point}) for k, point in enumerate(points)]
    chosen = selected(squared_distances(updates, {"w": torch.zeros(points.shape[1])}), F)
    rest = list(range(len(points)))
    while len(rest) > 2 * (F + 1):
        best = theirs(byzfl.Krum(F + 1), points[rest])
        place = next(each for each in rest if torch.equal(points[each], best))
        assert place in chosen
        rest.remove(place)
    assert len(points) - len(rest) == len(chosen) - 2
