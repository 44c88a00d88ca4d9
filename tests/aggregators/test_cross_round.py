"""FedCDA against an independent server, by hand, and in a federation."""

import logging
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from support.federations import compose, federate

from fedexp.aggregators.cross_round import CrossRound, Totals, best_combination
from fedexp.core.messages import PartUpdate, Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.randomness import numpy_generator
from fedexp.errors import InputError
from fedexp.runtime.plan import plan

SMALL = ["clients.count=5", "clients.per_round=4", "local.epochs=2", "data.subset=150"]
NOW = ["algorithm=fedcda", "aggregator.warmup=0"]


def setting(clients: int, cohort: int, rounds: int = 50, **shapes: int) -> Setting:
    sizes = {name: torch.Size([size]) for name, size in shapes.items()}
    counts = torch.ones(clients, 2, dtype=torch.int64)
    shared = frozenset([*sizes, "mean", "steps"])
    return Setting(7, rounds, 2, 1, clients, cohort, Clients.of(counts), Model(sizes, shared))


def aggregator(
    clients: int = 2,
    cohort: int = 2,
    memory: int = 3,
    batches: int = 1,
    smoothness: float = 1.0,
    warmup: int = 0,
    **shapes: int,
) -> CrossRound:
    part = CrossRound(memory, batches, smoothness, warmup, "samples")
    part.setup(setting(clients, cohort, **(shapes or {"w": 1})))
    return part


def update(client: int, loss: float, n: int = 1, **weights: Any) -> Update:
    tensors = {name: torch.as_tensor(value) for name, value in weights.items()}
    return Update(client, n, tensors, {"aggregator": {"loss": torch.tensor(loss)}})


def merged(part: CrossRound, current: Tensors, updates: Sequence[PartUpdate]) -> Tensors:
    for each in updates:
        part.add(each, current)
    found = part.merge(current)
    part.commit()
    return found


# The choice.


def objective(models: Sequence[np.ndarray], losses: Sequence[float], smoothness: float) -> float:
    """The paper's, from the weights themselves."""
    mean = sum(models) / len(models)
    squares = sum(float(w @ w) for w in models) / len(models)
    return sum(losses) / len(losses) + smoothness / 2 * (squares - float(mean @ mean))


@pytest.mark.parametrize("smoothness", [0.0, 0.1, 10.0])
@pytest.mark.parametrize("others", [0, 1, 4])
def test_the_best_combination_is_that_of_a_loop(smoothness: float, others: int) -> None:
    draw = np.random.default_rng(others)
    start, fixed = draw.normal(size=6), [draw.normal(size=6) for _ in range(others)]
    fixed_losses = draw.uniform(size=others)
    lengths = [3, 1, 2]
    groups = [[draw.normal(size=6) for _ in range(length)] for length in lengths]
    losses = draw.uniform(size=sum(lengths))
    members = [[0, 1, 2], [3], [4, 5]]
    flat = [w for group in groups for w in group]

    def found_by_loop(chosen: tuple[int, ...]) -> float:
        all_losses = [*fixed_losses, *(losses[i] for i in chosen)]
        return objective([*fixed, *(flat[i] for i in chosen)], all_losses, smoothness)

    expected = min(product(*members), key=found_by_loop)
    steps = [w - start for w in flat]
    rows = np.stack([*steps, sum((w - start for w in fixed), np.zeros(6))])
    square = sum(float((w - start) @ (w - start)) for w in fixed)
    totals = Totals(others, float(fixed_losses.sum()), square, {})
    assert best_combination(rows @ rows.T, losses, members, totals, smoothness) == expected


def test_of_equal_objectives_the_newest_models_win() -> None:
    inner = np.zeros((5, 5))  # four candidates at w^t
    for losses, expected in [
        ([1, 1, 1, 1], (0, 2)),
        ([1, 1, 2, 1], (0, 3)),
        ([2, 1, 1, 1], (1, 2)),
    ]:
        totals = Totals(0, 0.0, 0.0, {})
        assert best_combination(inner, losses, [[0, 1], [2, 3]], totals, 1.0) == expected


# The server.


def reference(
    rounds: Sequence[Sequence[Update]], memory: int, batches: int, smoothness: float
) -> Iterator[tuple[np.ndarray, dict[int, int]]]:
    """The mean and the chosen rounds after each round: the method's text, step by step."""
    kept: dict[int, list[tuple[int, np.ndarray, float]]] = {}
    selected: dict[int, tuple[int, np.ndarray, float]] = {}
    for round, updates in enumerate(rounds, start=1):
        cohort = sorted(each.client for each in updates)
        for each in updates:
            loss = each.extras["aggregator"]["loss"].item()
            kept.setdefault(each.client, []).append((round, each.weights["w"].numpy(), loss))
            kept[each.client] = kept[each.client][-memory:]
        fixed = {client: pair for client, pair in selected.items() if client not in cohort}
        dealt = numpy_generator(7, "cross_round", round).permutation(cohort)
        sizes = [len(cohort) // batches + (i < len(cohort) % batches) for i in range(batches)]
        for size in sizes:
            batch, dealt = dealt[:size], dealt[size:]
            best, least = None, np.inf
            for chosen in product(*(reversed(kept[client]) for client in batch)):
                pairs = [*fixed.values(), *chosen]
                value = objective([w for _, w, _ in pairs], [f for *_, f in pairs], smoothness)
                if value < least:
                    best, least = chosen, value
            if best:
                fixed |= dict(zip(batch.tolist(), best, strict=True))
        selected = fixed
        mean = sum(w for _, w, _ in selected.values()) / len(selected)
        yield mean, {client: pair[0] for client, pair in selected.items()}


@pytest.mark.parametrize(("memory", "batches"), [(1, 1), (2, 2), (3, 1), (3, 4)])
def test_it_takes_the_steps_of_an_independent_server(memory: int, batches: int) -> None:
    draw = torch.Generator().manual_seed(memory)
    cohorts = [[0, 3], [1, 0, 3, 4], [2], [4, 0, 1], [3, 1, 0], [0, 1, 3, 4]]
    rounds = [
        [
            update(c, float(torch.rand((), generator=draw)), w=torch.randn(4, generator=draw))
            for c in cohort
        ]
        for cohort in cohorts
    ]
    part = aggregator(6, 4, memory, batches, 0.7, w=4)
    current, ages = {"w": torch.zeros(4)}, set()
    expected = reference(rounds, memory, batches, 0.7)
    for updates, (mean, chosen) in zip(rounds, expected, strict=True):
        current = merged(part, current, updates)
        assert part.server_state()["selected"] == chosen
        np.testing.assert_allclose(current["w"], mean, atol=1e-6)
        old = sum(round != max(part.server_state()["losses"][c]) for c, round in chosen.items())
        assert part.metrics() == {"aggregator/old_models": old}
        ages.add(old > 0)
    assert ages == ({False} if memory == 1 else {True, False})
    assert all(len(each) <= memory for each in part.server_state()["losses"].values())
    assert len(part.store or {}) == sum(map(len, part.server_state()["losses"].values()))


def test_old_models_that_agree_beat_new_ones_that_do_not() -> None:
    """By hand: two clients, at 0 and 0 in round 1, at 4 and -4 in round 2, F = 0.

    Of the four pairs, (0, 0) has the spread 0; (4, 0) and (0, -4) have L/2 * 4; (4, -4) L/2 * 16.
    """
    for smoothness, losses, chosen, mean in [
        (1.0, (0.0, 0.0), {0: 1, 1: 1}, 0.0),
        (1.0, (-9.0, 0.0), {0: 2, 1: 1}, 2.0),  # -4.5 + 2 against 0 and -4.5 + 8
        (0.0, (-1.0, -1.0), {0: 2, 1: 2}, 0.0),
    ]:
        part, current = aggregator(smoothness=smoothness), {"w": torch.tensor([0.5])}
        merged(part, current, [update(0, 0.0, w=[0.0]), update(1, 0.0, w=[0.0])])
        new = [update(0, losses[0], w=[4.0]), update(1, losses[1], w=[-4.0])]
        assert merged(part, current, new)["w"].item() == mean
        assert part.server_state()["selected"] == chosen
        assert part.metrics()["aggregator/old_models"] == [*chosen.values()].count(1)


def test_the_mean_is_of_all_clients_that_sent_a_model_and_not_weighted() -> None:
    part, current = aggregator(clients=9, cohort=2), {"w": torch.tensor([0.0])}
    assert merged(part, current, [update(0, 0.0, w=[1.0], n=99)])["w"].item() == 1.0
    found = merged(part, current, [update(4, 0.0, w=[4.0]), update(5, 0.0, w=[7.0])])
    assert found["w"].item() == 4.0
    # A round without client 0: it keeps its model. So does one whose update was lost.
    assert merged(part, current, []) is current
    assert merged(part, current, [update(1, 0.0, w=[0.0])])["w"].item() == 3.0


def test_buffers_are_averaged_but_are_no_distance() -> None:
    part = aggregator(memory=2)
    current = {"w": torch.zeros(1), "mean": torch.zeros(1), "steps": torch.tensor(0)}
    merged(
        part,
        current,
        [
            update(0, 1.0, w=[0.0], mean=[1.0], steps=5),
            update(1, 1.0, w=[0.0], mean=[1.0], steps=6),
        ],
    )
    # The new models have the smaller loss and far running means: client 1's old one is kept, since
    # its new parameter is far.
    second = [
        update(0, 0.9, w=[0.0], mean=[101.0], steps=7),
        update(1, 0.9, w=[9.0], mean=[201.0], steps=8),
    ]
    found = merged(part, current, second)
    assert part.server_state()["selected"] == {0: 2, 1: 1}
    assert found["w"].item() == 0.0
    assert found["mean"].item() == 51.0
    assert found["steps"].item() == 7  # of the newest selected model
    assert found["steps"].dtype == torch.int64


def test_the_spread_of_nearby_models_far_from_zero_is_exact() -> None:
    """Norms of 1e6 and distances of 1e-2: in float32 or from raw weights, the squares cancel."""
    part, current = aggregator(smoothness=1e4), {"w": torch.tensor([1e6])}
    merged(part, current, [update(0, 0.0, w=[1e6]), update(1, 0.0, w=[1e6])])
    new = [update(0, 0.0, w=[1e6 + 0.0625]), update(1, 0.0, w=[1e6 + 0.125])]
    merged(part, current, new)
    assert part.server_state()["selected"] == {0: 1, 1: 1}


# In a federation.


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_warm_up_is_fedavg_to_the_bit(weighting: str) -> None:
    by = f"aggregator.weighting={weighting}"
    plain, warm = federate(*SMALL, by), federate(*SMALL, *NOW, "aggregator.warmup=2", by)
    for round in (1, 2, 3):
        plain.run_round(round)
        metrics = warm.run_round(round).metrics
        same = all(torch.equal(w, warm.server.weights[n]) for n, w in plain.server.weights.items())
        assert same == (round <= 2)
        assert round > 2 or metrics["aggregator/old_models"] == 0


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_client_sends_the_loss_of_its_last_epoch(engine: str) -> None:
    federation = federate(*SMALL, *NOW, f"engine={engine}")
    for sent in federation.engine.train(range(5), federation.server.broadcast(1)):
        loss = sent.extras["aggregator"]["loss"]
        assert loss.dtype == torch.float32
        # Which of the last epoch: tests/engines/test_cross_entropy.py.
        assert loss.item() == pytest.approx(sent.metrics["cross_entropy"], rel=1e-6)


def test_four_bytes_more_are_sent() -> None:
    plain, cross = federate(*SMALL), federate(*SMALL, *NOW)
    one, other = plain.run_round(1).metrics, cross.run_round(1).metrics
    assert other["cost/upload_bytes"] == one["cost/upload_bytes"] + 4 * 4
    assert other["cost/download_bytes"] == one["cost/download_bytes"]


def test_a_client_in_quarantine_keeps_its_selected_model() -> None:
    federation = federate(
        *SMALL, *NOW, "clients.per_round=5", "faults=unreliable", "faults.nan=0.4"
    )
    before: dict[int, dict[int, float]] = {}
    lost = 0
    for round in range(1, 5):
        federation.run_round(round)
        state = federation.server.aggregator.server_state()
        for client in federation.quarantine.clients:
            lost += 1
            assert state["losses"].get(client) == before.get(client)
        before = {client: dict(losses) for client, losses in state["losses"].items()}
    assert lost
    assert all(w.isfinite().all() for w in federation.server.weights.values())


def test_a_model_with_batch_norm() -> None:
    overrides = [*SMALL, *NOW, "head=etf", "head.feature_norm=batchnorm", "aggregator.memory=2"]
    federation = federate(*overrides)
    names = federation.server.weights.keys()
    for round in (1, 2, 3):
        federation.run_round(round)
    assert federation.server.weights.keys() == names
    assert all(w.isfinite().all() for w in federation.server.weights.values())


def test_too_many_combinations_are_refused_with_advice() -> None:
    crowd = ["algorithm=fedcda", "clients.count=20", "clients.per_round=20"]
    federate(*SMALL, *crowd, "aggregator.batches=3")  # 7 in a batch
    message = (
        r"aggregator\.batches=2: 10 clients in a batch with 3 models each have more than 10000 "
        r"combinations; use aggregator\.batches=3 or more"
    )
    with pytest.raises(InputError, match=message):
        federate(*SMALL, *crowd, "aggregator.batches=2")
    with pytest.raises(InputError, match=r"use a smaller aggregator\.memory"):
        aggregator(30, 30, memory=20_000, batches=30).setup(setting(30, 30, rounds=20_000))
    aggregator(30, 30, memory=20_000, batches=30)  # but 50 rounds make 50 models at most


def test_a_warm_up_of_the_whole_run_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        federate(*SMALL, "algorithm=fedcda", "rounds=50")
    assert "aggregator.warmup=50: all 50 rounds are warm-up" in caplog.text


@pytest.mark.parametrize(
    "override",
    ["aggregator.memory=0", "aggregator.batches=0", "aggregator.smoothness=-1"],
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=override):
        plan(compose("algorithm=fedcda", override))
