from collections.abc import Callable

import numpy as np
import pytest
import torch
from support.state_files import through_a_file

from fedexp.core.messages import PartUpdate
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.samplers.clustered import Clustered
from fedexp.samplers.divfl import DivFL
from fedexp.samplers.last_updates import LastUpdates

SHAPES = {
    name: torch.Size(s) for name, s in {"a.weight": [2, 2], "a.bias": [2], "own": [3]}.items()
}
START = {"a.weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "a.bias": torch.tensor([5.0, 6.0])}
SAMPLERS = [lambda: Clustered("rows", "right", 0), lambda: DivFL("last_update", "plain")]
each_sampler = pytest.mark.parametrize("make", SAMPLERS, ids=["clustered", "divfl"])


def prepared(sampler: LastUpdates, num_clients: int = 40, per_round: int = 3) -> LastUpdates:
    counts = torch.arange(num_clients).unsqueeze(1)  # client 0 has no data
    shared = frozenset({"a.weight", "a.bias", "a.running_mean"})
    model = Model(SHAPES, shared)
    sampler.setup(Setting(0, 10, 1, 1, num_clients, per_round, Clients.of(counts), model))
    return sampler


def send(sampler: LastUpdates, steps: dict[int, torch.Tensor]) -> None:
    """One round in which these clients move by these steps [6]."""
    updates = []
    for client, step in steps.items():
        weights = {
            "a.bias": START["a.bias"] + step[4:],
            "a.weight": START["a.weight"] + step[:4].reshape(2, 2),
            "a.running_mean": torch.full((9,), 1e6),
        }
        updates.append(PartUpdate(client, 1, {}, sampler.extract(weights, START)))
    sampler.aggregate(updates)


def randoms(*clients: int) -> dict[int, torch.Tensor]:
    return {
        client: torch.randn(6, generator=torch.Generator().manual_seed(client))
        for client in clients
    }


def expected(sampler: LastUpdates, known: dict[int, torch.Tensor]) -> np.ndarray:
    """[n, n] distances by loops in float64."""
    vectors = [known.get(client, torch.zeros(6)).double().numpy() for client in range(1, 40)]
    found = np.zeros((39, 39))
    for i, u in enumerate(vectors):
        for j, v in enumerate(vectors):
            if i == j:
                continue
            if isinstance(sampler, DivFL):
                found[i, j] = np.sqrt(((u - v) ** 2).sum())
            else:
                lengths = np.sqrt((u**2).sum() * (v**2).sum())
                found[i, j] = np.arccos((u * v).sum() / lengths) if lengths > 0 else np.pi / 2
    return found


@each_sampler
def test_distances_follow_the_last_updates(make: Callable[[], LastUpdates]) -> None:
    sampler = prepared(make())
    np.testing.assert_allclose(sampler.distances, expected(sampler, {}))
    first, second = randoms(3, 7, 30), {7: torch.arange(6.0), 8: -torch.arange(6.0)}
    send(sampler, first)
    np.testing.assert_allclose(sampler.distances, expected(sampler, first), atol=1e-6)
    send(sampler, second)
    np.testing.assert_allclose(sampler.distances, expected(sampler, first | second), atol=1e-6)
    assert sampler.updates[8].tolist() == [0, -1, -2, -3, -4, -5]  # shared parameters, in order
    assert sampler.updates[8].dtype == torch.float32
    assert sampler.times_chosen[[3, 7, 8]].tolist() == [1, 2, 1]


@each_sampler
def test_many_updates_at_once_are_compared_block_by_block(
    make: Callable[[], LastUpdates],
) -> None:
    sampler, steps = prepared(make()), randoms(*range(1, 40))
    send(sampler, steps)
    np.testing.assert_allclose(sampler.distances, expected(sampler, steps), atol=1e-6)


@each_sampler
def test_distances_do_not_depend_on_the_order_of_updates(make: Callable[[], LastUpdates]) -> None:
    steps = randoms(*range(1, 30))
    first, second = prepared(make()), prepared(make())
    send(first, steps)
    send(second, dict(reversed(steps.items())))
    assert torch.equal(first.distances, second.distances)


@each_sampler
def test_a_round_without_updates_changes_nothing(make: Callable[[], LastUpdates]) -> None:
    sampler = prepared(make())
    send(sampler, randoms(3, 7))
    before = sampler.distances.clone()
    send(sampler, {})
    assert torch.equal(sampler.distances, before)


@each_sampler
def test_updates_that_are_not_finite_are_ignored(make: Callable[[], LastUpdates]) -> None:
    sampler, steps = prepared(make()), randoms(4, 5)
    send(sampler, steps)
    send(sampler, {4: torch.full((6,), torch.nan), 6: torch.full((6,), torch.inf)})
    np.testing.assert_allclose(sampler.distances, expected(sampler, steps), atol=1e-6)
    sampler.select(3)


@each_sampler
def test_cohorts_are_the_same_after_a_restart(make: Callable[[], LastUpdates]) -> None:
    sampler, again = prepared(make()), prepared(make())
    send(sampler, randoms(3, 7, 30))
    again.load_server_state(through_a_file(sampler.server_state()))
    for each in (sampler, again):
        send(each, {3: torch.arange(6.0), 9: torch.ones(6)})
    assert torch.equal(sampler.distances, again.distances)
    assert torch.equal(sampler.times_chosen, again.times_chosen)
    assert [sampler.select(r) for r in range(2, 9)] == [again.select(r) for r in range(2, 9)]


@each_sampler
def test_a_saved_state_does_not_change_later(make: Callable[[], LastUpdates]) -> None:
    sampler, again = prepared(make()), prepared(make())
    send(sampler, randoms(3, 7))
    state, distances = sampler.server_state(), sampler.distances.clone()
    send(sampler, {3: torch.arange(6.0)})
    again.load_server_state(state)
    assert torch.equal(again.distances, distances)
    torch.testing.assert_close(again.updates[3], randoms(3)[3], atol=1e-6, rtol=0)


@each_sampler
def test_without_shared_parameters_it_is_an_error(make: Callable[[], LastUpdates]) -> None:
    model = Model(SHAPES, frozenset({"a.running_mean"}))
    nothing = Setting(0, 10, 1, 1, 3, 2, Clients.of(torch.ones(3, 1)), model)
    with pytest.raises(InputError, match="but no parameter is shared"):
        make().setup(nothing)
