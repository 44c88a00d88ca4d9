"""The geometric median and centred clipping, by hand and against other computations."""

import pytest
import torch
from scipy.optimize import minimize

from fedexp.aggregators.centered_clipping import CenteredClipping
from fedexp.aggregators.geometric_median import GeometricMedian
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import Aggregator
from fedexp.testing import check_part


def update(client: int, *w: float, n: int = 1, seen: int = 0, draws: int = 1) -> Update:
    weights = {"w": torch.tensor(w), "seen": torch.tensor(seen)}
    return Update(client, n, weights, draws=draws)


def merged(aggregator: Aggregator, current: Tensors, *updates: Update) -> Tensors:
    for each in updates:
        aggregator.add(each, current)
    found = aggregator.merge(current)
    aggregator.commit()
    return found


def start(*w: float) -> Tensors:
    return {"w": torch.tensor(w), "seen": torch.tensor(0)}


def test_on_a_line_the_geometric_median_is_the_median() -> None:
    updates = [update(k, w) for k, w in enumerate([0.0, 1.0, 3.0, 10.0, 1000.0])]
    found = merged(GeometricMedian(200, 1e-6), start(5.0), *updates)["w"].item()
    assert found == pytest.approx(3.0, abs=1e-3)


def test_two_draws_are_two_votes() -> None:
    updates = [update(0, 0.0), update(1, 4.0, draws=2)]
    assert merged(GeometricMedian(200, 1e-6), start(1.0), *updates)["w"].item() == pytest.approx(4)


def test_one_weiszfeld_step_by_hand() -> None:
    # Mean 4; distances 4, 3, 7; weights 1/4, 1/3, 1/7: (0/4 + 1/3 + 11/7) / (1/4 + 1/3 + 1/7)
    updates = [update(k, w) for k, w in enumerate([0.0, 1.0, 11.0])]
    found = merged(GeometricMedian(1, 1e-6), start(0.0), *updates)["w"].item()
    assert found == pytest.approx((1 / 3 + 11 / 7) / (1 / 4 + 1 / 3 + 1 / 7))


def test_few_iterations_leave_a_share_of_a_very_long_step() -> None:
    """As the docstring says: a share a of it is left, which each iteration makes smaller."""
    updates = [update(k, 1e6 if k < 4 else k / 100) for k in range(10)]
    share, f, n = 0.4, 4, 10
    for iterations in range(1, 11):
        share = f * share / (f * share + (n - f) * (1 - share))
        found = merged(GeometricMedian(iterations, 1e-6), start(0.0), *updates)["w"].item()
        assert found / 1e6 == pytest.approx(share, rel=1e-3)
        if iterations == 3:
            assert share == pytest.approx(0.165, abs=5e-4)
    assert share == pytest.approx(0.011, abs=5e-4)


def test_the_geometric_median_has_the_least_mean_distance() -> None:
    points = torch.randn(7, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    updates = [Update(k, 1, {"a": p[:2], "b": p[2:]}) for k, p in enumerate(points)]
    found = merged(
        GeometricMedian(2000, 1e-12),
        {"a": torch.zeros(2, dtype=torch.float64), "b": torch.zeros(1, dtype=torch.float64)},
        *updates,
    )
    best = minimize(
        lambda x: (points - torch.from_numpy(x)).norm(dim=1).mean().item(),
        points.mean(dim=0).numpy(),
        method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 10000},
    )
    expected = torch.from_numpy(best.x)
    torch.testing.assert_close(torch.cat([found["a"], found["b"]]), expected, atol=1e-5, rtol=0)


def test_centred_clipping_by_hand() -> None:
    rule = CenteredClipping(radius=2.0, iterations=1)
    # Steps 1, 2 and 60 from 10, clipped around 0: (1 + 2 + 2) / 3
    first = merged(rule, start(10.0), update(0, 11.0), update(1, 12.0), update(2, 70.0))["w"]
    assert first.item() == pytest.approx(10 + 5 / 3)
    assert rule.metrics() == {"aggregator/clipped": pytest.approx(1 / 3)}
    # Around 5/3: step 0 is clipped to none, 5/3 away: -5/3; step 9 is 22/3 away: 2
    second = merged(rule, start(0.0), update(0, 0.0), update(1, 9.0))["w"]
    assert second.item() == pytest.approx(5 / 3 + (-5 / 3 + 2) / 2)


def test_centred_clipping_moves_several_times_in_a_round() -> None:
    # One client with the step 5: the centre moves by 2, by 2 and by the last 1
    found = merged(CenteredClipping(2.0, 3), start(0.0), update(0, 5.0))["w"]
    assert found.item() == pytest.approx(5.0)


def test_the_length_is_that_of_all_weights_together() -> None:
    current = {"a": torch.zeros(1), "b": torch.zeros(1)}
    step = Update(0, 1, {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])})
    found = merged(CenteredClipping(1.0, 1), current, step)
    assert (found["a"].item(), found["b"].item()) == pytest.approx((0.6, 0.8))


def test_the_centre_is_saved() -> None:
    rule, resumed = CenteredClipping(2.0, 1), CenteredClipping(2.0, 1)
    merged(rule, start(0.0), update(0, 1.0))
    resumed.load_server_state(rule.server_state())
    last = [update(0, 4.0), update(1, -3.0)]
    assert torch.equal(
        merged(rule, start(1.0), *last)["w"], merged(resumed, start(1.0), *last)["w"]
    )


def test_a_variance_stays_between_the_values_of_server_and_clients() -> None:
    rule, current = CenteredClipping(0.05, 1), {"var": torch.tensor(1.0)}
    rule.setup(
        Setting(0, 9, 2, 2, 3, 3, Clients.of(torch.ones(3, 2)), Model({}, frozenset({"var"})))
    )
    variances = []
    for _ in range(25):
        current = merged(
            rule, current, *(Update(k, 1, {"var": torch.tensor(0.1)}) for k in range(3))
        )
        variances.append(current["var"].item())
    assert variances == sorted(variances, reverse=True)
    assert variances[-1] == pytest.approx(0.1)


@pytest.mark.parametrize("rule", [GeometricMedian(3, 1e-6), CenteredClipping(1.0, 1)])
def test_buffers_are_of_the_client_with_the_median_size(rule: Aggregator) -> None:
    sizes = [update(0, 0.0, n=5, seen=50), update(1, 0.0, n=10**9, seen=9), update(2, 0.0, seen=1)]
    assert merged(rule, start(0.0), *sizes)["seen"].item() == 50


@pytest.mark.parametrize("rule", [GeometricMedian(3, 1e-6), CenteredClipping(1.0, 1)])
def test_weights_that_are_numbers_and_models_without_shared_weights(rule: Aggregator) -> None:
    scalars = [Update(k, 1, {"scale": torch.tensor(1.5)}) for k in range(3)]
    found = merged(rule, {"scale": torch.tensor(1.0)}, *scalars)
    assert found["scale"].item() == pytest.approx(1.5)
    assert merged(rule, {}, Update(0, 1, {})) == {}


@pytest.mark.slow
@pytest.mark.parametrize("option", ["geometric_median", "centered_clipping"])
def test_the_contract(option: str) -> None:
    check_part(f"aggregator={option}", "clients.per_round=3")
