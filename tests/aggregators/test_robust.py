"""Median, trimmed mean, Krum and norm clipping on small examples by hand."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np
import pytest
import torch
from support.federations import compose

from fedexp.aggregators.average import Average
from fedexp.aggregators.clipping import NormClipped
from fedexp.aggregators.coordinatewise import Median, TrimmedMean
from fedexp.aggregators.krum import Krum, krum_scores, squared_distances
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.sockets import Aggregator
from fedexp.rounding import rounded_down
from fedexp.runtime.plan import plan


def update(client: int, *w: float, n: int = 1, seen: int = 0, draws: int = 1) -> Update:
    weights = {"w": torch.tensor(w), "seen": torch.tensor(seen)}
    return Update(client, n, weights, draws=draws)


def merged(aggregator: Aggregator, current: Tensors, updates: Sequence[PartUpdate]) -> Tensors:
    for each in updates:
        aggregator.add(each, current)
    return aggregator.merge(current)


def start(*w: float) -> Tensors:
    return {"w": torch.tensor(w), "seen": torch.tensor(0)}


ROBUST = [Median(), TrimmedMean(0.2), Krum(0.2, None), NormClipped("uniform", 2.0)]


def test_the_median_of_odd_and_even_cohorts() -> None:
    three = [update(0, 1.0, 9.0), update(1, 2.0, 8.0), update(2, 1e9, -7.0)]
    assert merged(Median(), start(0.0, 0.0), three)["w"].tolist() == [2.0, 8.0]
    four = [*three, update(3, 4.0, 10.0)]
    # 1, 2, 4, 1e9 and -7, 8, 9, 10
    assert merged(Median(), start(0.0, 0.0), four)["w"].tolist() == [3.0, 8.5]


def test_a_client_drawn_twice_has_two_votes() -> None:
    updates = [update(0, 1.0), update(1, 5.0, draws=2)]
    assert merged(Median(), start(0.0), updates)["w"].item() == 5.0


def test_the_trimmed_mean_leaves_out_both_ends() -> None:
    updates = [update(client, w) for client, w in enumerate([-100.0, 1.0, 2.0, 6.0, 1000.0])]
    assert merged(TrimmedMean(0.2), start(0.0), updates)["w"].item() == 3.0  # (1 + 2 + 6) / 3
    assert merged(TrimmedMean(0.49), start(0.0), updates)["w"].item() == 2.0


def test_the_trimmed_mean_agrees_with_scipy() -> None:
    from scipy.stats import trim_mean

    torch.manual_seed(0)
    values = torch.randn(11, 7, dtype=torch.float64)
    updates = [Update(k, 1, {"w": row}) for k, row in enumerate(values)]
    found = merged(TrimmedMean(0.25), {"w": torch.zeros(7, dtype=torch.float64)}, updates)["w"]
    np.testing.assert_allclose(found, trim_mean(values.numpy(), 0.25, axis=0), atol=1e-12)


@pytest.mark.parametrize(("share", "count", "whole"), [(0.29, 100, 29), (0.2, 9, 1), (0.0, 5, 0)])
def test_shares_are_rounded_down_with_a_tolerance(share: float, count: int, whole: int) -> None:
    assert rounded_down(share, count) == whole


def test_krum_scores_by_hand() -> None:
    """Points 0, 1, 3, 10 on a line; f = 0, so that each has K - f - 2 = 2 neighbours."""
    updates = [update(client, w) for client, w in enumerate([0.0, 1.0, 3.0, 10.0])]
    squares = squared_distances(updates, start(5.0))
    assert squares.tolist() == [[0, 1, 9, 100], [1, 0, 4, 81], [9, 4, 0, 49], [100, 81, 49, 0]]
    assert krum_scores(squares, 0).tolist() == [1 + 9, 1 + 4, 4 + 9, 49 + 81]
    assert krum_scores(squares, 1).tolist() == [1, 1, 4, 49]


def test_krum_keeps_the_best() -> None:
    """Five points and f = 1: scores over two neighbours are 10, 5, 13, 50 and 65."""
    updates = [update(client, w) for client, w in enumerate([0.0, 1.0, 3.0, 10.0, 11.0])]
    assert merged(Krum(0.2, 1), start(5.0), updates)["w"].item() == 1.0
    assert merged(Krum(0.2, 2), start(5.0), updates)["w"].item() == 0.5
    assert merged(Krum(0.2, None), start(5.0), updates)["w"].item() == 3.5
    # never more than K - f
    assert merged(Krum(0.2, 5), start(5.0), updates)["w"].item() == 3.5
    # of equal scores, the first client's
    line = [update(client, w) for client, w in enumerate([0.0, 1.0, 2.0, 10.0, 20.0])]
    assert merged(Krum(0.2, 2), start(5.0), line)["w"].item() == 0.5


def test_krums_distances_are_of_all_float_weights() -> None:
    torch.manual_seed(0)
    weights = [{"a": torch.randn(3, 2), "b": torch.randn(4)} for _ in range(5)]
    current = {"a": torch.randn(3, 2), "b": torch.randn(4)}
    found = squared_distances([PartUpdate(k, 1, w) for k, w in enumerate(weights)], current)
    flat = torch.stack([torch.cat([w["a"].flatten(), w["b"]]) for w in weights]).double()
    np.testing.assert_allclose(found, torch.cdist(flat, flat).square(), atol=1e-6)


def test_long_steps_are_scaled_down_and_short_ones_are_not() -> None:
    """From (1, 1): a step (3, 4) of length 5 becomes (1.2, 1.6) at 2; (0, 1) stays."""
    aggregator = NormClipped("uniform", 2.0)
    updates = [update(0, 4.0, 5.0), update(1, 1.0, 2.0)]
    found = merged(aggregator, start(1.0, 1.0), updates)["w"]
    assert found.tolist() == pytest.approx([1 + 1.2 / 2, 1 + (1.6 + 1) / 2])
    assert aggregator.metrics() == {"aggregator/clipped": 0.5, "aggregator/step_norm": 3.0}


def test_the_bound_is_on_all_tensors_together() -> None:
    current = {"a": torch.zeros(1), "b": torch.zeros(1)}
    one = Update(0, 1, {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    found = merged(NormClipped("samples", 1.0), current, [one])
    assert (found["a"].item(), found["b"].item()) == pytest.approx((0.6, 0.8))


def test_a_bound_above_all_steps_is_plain_averaging_to_the_bit() -> None:
    torch.manual_seed(0)
    current = {"w": torch.randn(50)}
    updates = [Update(k, k + 1, {"w": torch.randn(50)}) for k in range(4)]
    clipped = merged(NormClipped("samples", 100.0), current, updates)["w"]
    assert torch.equal(clipped, merged(Average("samples"), current, updates)["w"])


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda each: type(each).__name__)
def test_the_order_of_updates_does_not_matter(aggregator: Aggregator) -> None:
    torch.manual_seed(0)
    current = {"w": torch.zeros(100)}
    updates = [Update(k, k + 1, {"w": torch.randn(100)}) for k in range(5)]
    results = [merged(aggregator, current, each)["w"] for each in permutations(updates)]
    assert all(torch.equal(results[0], each) for each in results)


@pytest.mark.parametrize("aggregator", ROBUST, ids=lambda each: type(each).__name__)
def test_a_cohort_does_not_affect_the_next_one(
    aggregator: Aggregator,
) -> None:
    current = start(0.0)
    assert aggregator.merge(current) is current
    merged(aggregator, current, [update(client, 9.0) for client in range(5)])
    found = merged(aggregator, current, [update(client, 1.0, seen=4) for client in range(5)])
    assert found["w"].item() == 1.0
    assert found["seen"] == 4
    assert found["w"].dtype == torch.float32


def test_one_byzantine_client_of_five_has_a_bounded_effect() -> None:
    honest = [update(client, 1.0 + 0.1 * client) for client in range(4)]
    attack = update(4, -1e6, n=1000, seen=99)
    for aggregator in ROBUST:
        found = merged(aggregator, start(0.0), [*honest, attack])
        assert abs(found["w"].item() - 1.15) < 1, type(aggregator)
    assert merged(Average("uniform"), start(0.0), [*honest, attack])["w"].item() < -1e5


def test_without_shared_weights_the_result_is_empty() -> None:
    for aggregator in ROBUST:
        assert merged(aggregator, {}, [Update(0, 1, {}), Update(1, 1, {})]) == {}


def test_integer_buffers_are_not_those_of_the_largest_client() -> None:
    updates = [update(0, 0.0, n=5, seen=1), update(1, 0.0, n=6, seen=2), update(2, 0.0, n=999)]
    assert merged(Median(), start(0.0), updates)["seen"] == 2


@pytest.mark.parametrize(
    ("aggregator", "warned"), [("geometric_median", False), ("centered_clipping", True)]
)
def test_a_rule_of_steps_is_warned_of_moved_starts_and_a_median_of_weights_is_not(
    aggregator: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    plan(compose("algorithm=fedala", f"aggregator={aggregator}"))
    assert ("measures each client's step" in caplog.text) == warned
