"""Sensitivity, noise and privacy loss against independent values."""

import logging
import math
from typing import Any

import numpy as np
import pytest
import torch

from fedexp.aggregators.private import Private
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError

SHAPES = {"a": torch.Size([2]), "b": torch.Size([3])}


def private(
    clip: float = 1.0, z: float = 1.0, per_round: int = 4, clients: int = 10, **changes: Any
) -> Private:
    aggregator = Private(clip, z, 1e-5)
    counts = torch.ones(clients, 2, dtype=torch.int64)
    everyone = Clients.of(counts)
    known: dict[str, Any] = {"model": Model(SHAPES, frozenset(SHAPES)), **changes}
    aggregator.setup(Setting(0, 5, 2, 2, clients, per_round, everyone, **known))
    return aggregator


def update(client: int, *w: float, n: int = 1, draws: int = 1) -> Update:
    weights = {"a": torch.tensor(w[:2]), "b": torch.tensor(w[2:])}
    return Update(client, n, weights, draws=draws)


CURRENT: Tensors = {"a": torch.ones(2), "b": torch.ones(3)}
TINY = 1e-12  # a noise multiplier with negligible noise


def flat(weights: Tensors) -> np.ndarray:
    return torch.cat([weights["a"], weights["b"]]).double().numpy()


def merged(aggregator: Private, *updates: Update) -> np.ndarray:
    for each in updates:
        aggregator.add(each, CURRENT)
    return flat(aggregator.merge(CURRENT))


def test_clipped_steps_are_divided_by_the_size_of_the_drawn_cohort() -> None:
    """Steps (3, 4, 0, 0, 0) -> (1.2, 1.6, ...) at S = 2 and (0, 0, 1, 0, 0); K = 4, two lost."""
    updates = [update(0, 4, 5, 1, 1, 1, n=999), update(1, 1, 1, 2, 1, 1)]
    found = merged(private(clip=2.0, z=TINY), *updates)
    np.testing.assert_allclose(found, 1 + np.array([1.2, 1.6, 1, 0, 0]) / 4, atol=1e-6)


def test_one_client_changes_the_sum_by_at_most_the_bound_for_any_number_of_draws() -> None:
    others = [update(1, 1, 2, 1, 1, 1), update(2, 1, 1, 0.5, 1, 1)]
    without = merged(private(clip=0.7, z=TINY), *others)
    large = update(0, 1e6, -1e6, 3e6, 1, 1, n=10**6, draws=5)
    joined = merged(private(clip=0.7, z=TINY), *others, large)
    assert np.linalg.norm(joined - without) == pytest.approx(0.7 / 4, rel=1e-5)


@pytest.mark.parametrize("clip", [0.5, 2.0])
def test_the_noise_has_the_right_size(clip: float) -> None:
    """All steps are 0: over 400 rounds there is only noise of z S / K."""
    aggregator = private(clip=clip, z=3.0)
    still = update(0, 1, 1, 1, 1, 1)
    noise = np.stack([merged(aggregator, still) - 1 for _ in range(400)])
    expected = {0.5: 0.375, 2.0: 1.5}[clip]  # 3 S / 4
    # Of 2000 draws the deviation has a relative standard error of 1.6 %, the mean of 2.2 %.
    assert noise.std() == pytest.approx(expected, rel=0.07)
    assert abs(noise.mean()) < 0.1 * expected
    # Each coordinate and each round has noise of its own.
    correlation = np.corrcoef(noise.T) - np.eye(5)
    assert np.abs(correlation).max() < 0.2
    assert len(np.unique(noise)) == noise.size


def test_the_noise_is_proportional_to_the_bound() -> None:
    still = update(0, 1, 1, 1, 1, 1)
    narrow, wide = (merged(private(clip=clip), still) - 1 for clip in (0.5, 2.0))
    np.testing.assert_allclose(wide, 4 * narrow, rtol=1e-4)


def test_the_assumptions_of_epsilon_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        private(per_round=4, clients=10)
    (line,) = caplog.messages
    assert "4 of 10 clients" in line
    assert "Poisson" in line
    assert "seed=0" in line


def test_the_noise_is_the_same_after_a_restart() -> None:
    still = update(0, 1, 1, 1, 1, 1)
    whole = private()
    results = [merged(whole, still) for _ in range(3)]
    first, second = private(), private()
    merged(first, still)
    second.load_server_state(first.server_state())
    np.testing.assert_array_equal(merged(second, still), results[1])
    np.testing.assert_array_equal(merged(second, still), results[2])
    assert second.metrics()["privacy/epsilon"] == whole.metrics()["privacy/epsilon"]


def test_epsilon_grows_with_every_release_only() -> None:
    aggregator = private(z=2.0)
    spent = []
    for _ in range(3):
        merged(aggregator, update(0, 1, 1, 1, 1, 1))
        spent.append(aggregator.metrics()["privacy/epsilon"])
    assert 0 < spent[0] < spent[1] < spent[2] < math.inf
    assert aggregator.merge(CURRENT) is CURRENT
    assert aggregator.metrics()["privacy/epsilon"] == spent[2]


def test_reports_buffers_and_large_deltas_are_refused() -> None:
    report = Update(0, 1, dict(CURRENT), {"head": {"prototypes": torch.ones(2)}})
    with pytest.raises(InputError, match=r"head sent the server more than weights"):
        private().add(report, CURRENT)
    with pytest.raises(InputError, match=r"has buffers \(c\) that noise would break"):
        private(model=Model(SHAPES, frozenset({*SHAPES, "c"})))
    with pytest.raises(InputError, match=r"aggregator\.delta=1e-05: must be below 1/200000"):
        private(clients=200000)
