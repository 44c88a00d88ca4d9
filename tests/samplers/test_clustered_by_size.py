"""Algorithm 1 of Fraboni et al. against its steps written as a loop."""

from collections import Counter

import numpy as np
import pytest
import torch
from support.federations import federate

from fedexp.core.part import Clients, Model, Setting
from fedexp.samplers.clustered_by_size import ClusteredBySize, distributions_by_size


def by_loop(sizes: list[int], num_draws: int) -> list[list[int]]:
    """Put unit after unit of the clients, largest first, into the first distribution with room."""
    total, found = sum(sizes), [[0] * len(sizes) for _ in range(num_draws)]
    for client in sorted(range(len(sizes)), key=lambda k: (-sizes[k], k)):
        for _ in range(num_draws * sizes[client]):
            row = next(each for each in found if sum(each) < total)
            row[client] += 1
    return found


def test_by_hand() -> None:
    # n = 10 and K = 2: client 0 has 8 units, client 1 has 6, client 2 has 4, client 3 has 2.
    found = distributions_by_size(np.array([4, 3, 2, 1]), 2)
    assert found.tolist() == [[8, 2, 0, 0], [0, 4, 4, 2]]
    # The order is by size, not by number; a client larger than n / K has a distribution alone.
    assert distributions_by_size(np.array([1, 1, 6]), 2).tolist() == [[0, 0, 8], [2, 2, 4]]


@pytest.mark.parametrize("seed", range(20))
def test_against_a_loop_over_units(seed: int) -> None:
    generator = np.random.default_rng(seed)
    clients = int(generator.integers(1, 12))
    sizes = generator.integers(1, 9, clients)
    draws = int(generator.integers(1, clients + 1))
    found = distributions_by_size(sizes, draws)
    assert found.tolist() == by_loop(sizes.tolist(), draws)
    assert (found.sum(axis=1) == sizes.sum()).all()
    assert (found.sum(axis=0) == draws * sizes).all()


def test_over_many_rounds_a_client_is_drawn_in_proportion_to_its_samples() -> None:
    sizes = [9, 0, 1, 2, 3, 4, 5, 0, 6]
    sampler = ClusteredBySize()
    counts = torch.tensor(sizes).unsqueeze(1)
    sampler.setup(Setting(0, 10, 1, 1, len(sizes), 3, Clients.of(counts), Model({})))
    rounds = 3000
    draws: Counter[int] = Counter()
    for round in range(rounds):
        cohort = sampler.select(round)
        assert cohort == sampler.select(round)
        assert len(cohort) == 3
        draws.update(cohort)
    assert {client for client in draws if not sizes[client]} == set()
    for client, size in enumerate(sizes):
        expected = 3 * size / sum(sizes)
        assert draws[client] / rounds == pytest.approx(expected, abs=0.04)


def test_it_runs_and_sends_nothing_but_weights() -> None:
    federation = federate(
        *("sampler=clustered_by_size", "aggregator=uniform", "clients.count=6"),
        *("clients.per_round=3", "data.subset=200", "local.epochs=1"),
    )
    metrics = federation.run_round(1).metrics
    trained = len(set(federation.sampler.select(1)))
    message = federation.server.broadcast(1).nbytes
    assert metrics["cost/upload_bytes"] == trained * message
