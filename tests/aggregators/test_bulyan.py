"""Bulyan by hand, against a plain loop of the paper, and in small federations."""

import numpy as np
import pytest
import torch
from support.federations import federate

from fedexp.aggregators.bulyan import Bulyan, selected
from fedexp.aggregators.coordinatewise import mean_around_median
from fedexp.core.messages import Tensors, Update
from fedexp.core.sockets import Aggregator
from fedexp.errors import InputError
from fedexp.testing import check_part


def merged(aggregator: Aggregator, current: Tensors, *updates: Update) -> Tensors:
    for each in updates:
        aggregator.add(each, current)
    return aggregator.merge(current)


def cohort(rows: torch.Tensor) -> list[Update]:
    return [Update(k, 10, {"w": row, "seen": torch.tensor(k)}) for k, row in enumerate(rows)]


def start(size: int) -> Tensors:
    return {"w": torch.zeros(size), "seen": torch.tensor(0)}


def bulyan_by_the_paper(points: np.ndarray, f: int) -> np.ndarray:
    """Section 4 of the paper for points [n, d], without sorting tricks."""
    received, chosen = list(range(len(points))), []
    while len(chosen) < len(points) - 2 * f:
        scores = []
        for i in received:
            squares = sorted(((points[i] - points[j]) ** 2).sum() for j in received if j != i)
            scores.append(sum(squares[: max(1, len(received) - f - 2)]))
        chosen.append(received.pop(int(np.argmin(scores))))
    result = np.empty(points.shape[1])
    for d in range(points.shape[1]):
        values = sorted(points[chosen, d])
        # Of the values, the one with the least sum of distances to all of them; equal sums of the
        # two middle values differ by rounding.
        median = min(values, key=lambda m: round(sum(abs(v - m) for v in values), 5))
        result[d] = np.mean(sorted(values, key=lambda v: abs(v - median))[: len(chosen) - 2 * f])
    return result


def test_the_mean_around_the_median_by_hand() -> None:
    # Median 3; distances 3, 2, 0, 4, 9; median 1 with distances 1, 1, 0, 5, 6: the smaller first
    values = torch.tensor([[0.0, 0.0], [1.0, 0.0], [3.0, 1.0], [7.0, 2.0], [12.0, 7.0]])
    assert mean_around_median(values, 2).tolist() == [2.0, 0.5]
    assert mean_around_median(values, 3).tolist() == pytest.approx([4 / 3, 1 / 3])
    # An even number: the lower middle value
    assert mean_around_median(values[:4], 1).tolist() == [1.0, 0.0]


def test_selection_by_hand() -> None:
    """Points 0, 1, 3, 4, 10, 20, 21 and f = 1: Krum's best of seven, of six, ... five in all."""
    line = torch.tensor([0.0, 1.0, 3.0, 4.0, 10.0, 20.0, 21.0])
    squares = (line[:, None] - line).square()
    # Sums over 4 neighbours: 1+9+16+100, 1+4+9+81, 4+1+9+49, 1+9+16+36, ...: 4 is first; then with
    # three of the others: 1+9+100, 1+4+81, 9+4+49, 49+81+100, ...: 3; then with two: 1+100,
    # 1+81, 81+100, 1+100, 1+121: 1; then with one: 100, 100, 1, 1: 20; then 100, 100, 121: 0
    assert selected(squares, 1) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize(("n", "f"), [(7, 1), (8, 1), (11, 2), (12, 2)])
def test_it_is_the_loop_of_the_paper(n: int, f: int) -> None:
    torch.manual_seed(n)
    points = torch.randn(n, 6)
    points[:f] += 30  # far away
    found = merged(Bulyan((f + 0.5) / n), start(6), *cohort(points))["w"]
    np.testing.assert_allclose(found, bulyan_by_the_paper(points.numpy(), f), atol=1e-6)


def test_one_wild_coordinate_of_a_byzantine_update_has_a_bounded_effect() -> None:
    """The attack that the paper is about: close to the others in all coordinates except one."""
    points = torch.randn(11, 1000, generator=torch.Generator().manual_seed(0))
    points[:2] = points[2:].mean(dim=0)
    points[:2, 7] += 20
    found = merged(Bulyan(0.2), start(1000), *cohort(points))["w"]
    assert abs(found[7].item()) < 1


def test_the_order_does_not_matter_and_draws_count() -> None:
    seven = cohort(torch.randn(7, 3, generator=torch.Generator().manual_seed(0)))
    orders = (seven, seven[::-1], seven[3:] + seven[:3])
    results = [merged(Bulyan(0.2), start(3), *each) for each in orders]
    assert all(torch.equal(results[0]["w"], each["w"]) for each in results)
    points = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    twice = [Update(k, 10, {"w": row}, draws=2) for k, row in enumerate(points)]
    again = [Update(k + 4, 10, {"w": row}) for k, row in enumerate(points)]
    once = [Update(k, 10, {"w": row}) for k, row in enumerate(points)]
    current = {"w": torch.zeros(3)}
    found = merged(Bulyan(0.2), current, *twice)["w"]
    torch.testing.assert_close(found, merged(Bulyan(0.2), current, *once, *again)["w"])
    assert merged(Bulyan(0.2), {}, Update(0, 1, {})) == {}


def test_integer_buffers_are_of_a_selected_client() -> None:
    points = torch.zeros(7, 2)
    points[3] = 1e6
    assert merged(Bulyan(0.15), start(2), *cohort(points))["seen"].item() != 3


def test_a_cohort_that_is_too_small_is_refused_in_one_line() -> None:
    line = r"^aggregator\.byzantine=0\.2: 2 attackers among 10 updates need at least 11 updates; "
    line += r"use the share 0\.1 for 1, or at least 11 updates in a round"
    with pytest.raises(InputError, match=line):
        federate("aggregator=bulyan", "aggregator.byzantine=0.2")


@pytest.mark.slow
def test_the_contract() -> None:
    seven = ["clients.count=8", "clients.per_round=7", "aggregator.byzantine=0.15"]
    check_part("aggregator=bulyan", *seven)
    check_part("aggregator=bulyan", "algorithm=fednh", *seven)
