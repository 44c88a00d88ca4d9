from collections.abc import Sequence
from itertools import permutations

import pytest
import torch

from fedexp.aggregators.average import Average
from fedexp.core.messages import Tensors, Update


def merged(weighting: str, current: Tensors, updates: Sequence[Update]) -> Tensors:
    aggregator = Average(weighting)  # type: ignore[arg-type]
    for update in updates:
        aggregator.add(update, current)
    return aggregator.merge(current)


def update(client: int, n: int, w: Sequence[float], seen: int = 0) -> Update:
    weights = {"w": torch.tensor(w, dtype=torch.float32), "batches_seen": torch.tensor(seen)}
    return Update(client, n, weights)


CURRENT = {"w": torch.zeros(2), "batches_seen": torch.tensor(0)}


@pytest.mark.parametrize(
    ("weighting", "expected"),
    # samples: (1 * [1, 2] + 3 * [5, -2]) / 4; uniform: ([1, 2] + [5, -2]) / 2
    [("samples", [4.0, -1.0]), ("uniform", [3.0, 0.0])],
)
def test_average_by_hand(weighting: str, expected: list[float]) -> None:
    result = merged(weighting, CURRENT, [update(0, 1, [1, 2]), update(1, 3, [5, -2])])
    assert result["w"].tolist() == expected
    assert result["w"].dtype == torch.float32


def test_integer_buffers_come_from_the_largest_client_the_first_of_several() -> None:
    updates = [update(2, 7, [0, 0], 20), update(1, 7, [0, 0], 10), update(0, 3, [0, 0], 99)]
    for order in permutations(updates):
        assert merged("samples", CURRENT, order)["batches_seen"] == 10


def test_the_order_of_updates_does_not_matter() -> None:
    torch.manual_seed(0)
    updates = [Update(k, k + 1, {"w": torch.randn(1000)}) for k in range(5)]
    results = [
        merged("samples", {"w": torch.zeros(1000)}, each)["w"] for each in permutations(updates)
    ]
    assert all(torch.equal(results[0], each) for each in results)


def test_without_updates_the_weights_stay() -> None:
    assert merged("samples", CURRENT, []) is CURRENT


def test_a_cohort_does_not_affect_the_next() -> None:
    aggregator = Average("samples")
    aggregator.add(update(0, 1000, [9, 9]), CURRENT)
    aggregator.merge(CURRENT)
    aggregator.add(update(1, 1, [1, 2], 4), CURRENT)
    result = aggregator.merge(CURRENT)
    assert result["w"].tolist() == [1, 2]
    assert result["batches_seen"] == 4
