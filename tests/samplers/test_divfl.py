from itertools import combinations
from typing import Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.state_files import through_a_file
from torch import Tensor

from fedexp.core.messages import PartUpdate
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.randomness import numpy_generator
from fedexp.runtime.federation import Federation
from fedexp.samplers.divfl import DivFL, facility_location

TINY = ["clients.count=6", "clients.per_round=2", "data.subset=200", "local.epochs=1"]


def cost(distances: Tensor, chosen: tuple[int, ...]) -> float:
    return sum(min(row[j] for j in chosen) for row in distances.tolist())


def between(points: list[list[float]]) -> Tensor:
    spots = np.array(points)
    return torch.from_numpy(np.linalg.norm(spots[:, None] - spots, axis=2))


def test_by_hand_on_a_line() -> None:
    # 0 1 2 . . . 10 11: the median 2 first (cost 2+1+0+8+9=20), then 10 or 11, then an end of 0 1 2
    distances = between([[0], [1], [2], [10], [11]])
    assert facility_location(distances, 1) == [2]
    assert facility_location(distances, 2) == [2, 3]
    assert facility_location(distances, 5) == [2, 3, 0, 1, 4]


def test_ties_go_to_the_lower_number() -> None:
    assert facility_location(torch.zeros(5, 5, dtype=torch.float64), 3) == [0, 1, 2]
    assert facility_location(between([[3], [0], [3], [0]]), 2) == [0, 1]


def test_rounding_decides_no_tie() -> None:
    # 1 represents itself, 0, 2 and 3; far away, 4 and 5 each other: either lowers the sum alike
    distances = between([[0, 0], [0.3, 0.1], [-0.2, 0.2], [0.1, -0.3], [5.1, 4.2], [5.3, 4.7]])
    generator = np.random.default_rng(0)
    for _ in range(50):
        noise = torch.from_numpy(1 + 1e-14 * generator.normal(size=(6, 6)))
        assert facility_location(distances * noise, 2) == [1, 4]


def test_against_brute_force() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        distances = between(generator.normal(size=(9, 2)).tolist())
        everything = 9 * float(distances.max())
        for k in (1, 2, 3, 4):
            greedy = tuple(facility_location(distances, k))
            assert len(set(greedy)) == k
            best = min(cost(distances, chosen) for chosen in combinations(range(9), k))
            saved, possible = everything - cost(distances, greedy), everything - best
            assert saved >= (1 - 1 / np.e) * possible
            if k == 1:
                assert cost(distances, greedy) == pytest.approx(best)


def stochastic_by_loop(distances: Tensor, k: int, generator: np.random.Generator) -> list[int]:
    """Each step: the best of max(k, N // 10) points drawn from those not chosen yet."""
    n, chosen = len(distances), list[int]()
    for _ in range(k):
        left = [point for point in range(n) if point not in chosen]
        drawn = generator.choice(left, min(max(k, n // 10), len(left)), replace=False)
        points = sorted(drawn.tolist())  # of equal sums the lowest number
        costs = {point: round(cost(distances, (*chosen, point)), 9) for point in points}
        chosen.append(min(costs, key=lambda point: costs[point]))
    return chosen


@pytest.mark.parametrize(("n", "k"), [(40, 2), (40, 5), (25, 24), (3, 1)])
def test_stochastic_greedy_considers_a_random_subset_in_each_step(n: int, k: int) -> None:
    for seed in range(5):
        draw = np.random.default_rng
        distances = between(draw(100 + seed).normal(size=(n, 2)).tolist())
        found = facility_location(distances, k, draw(seed))
        assert found == stochastic_by_loop(distances, k, draw(seed))
        assert len(set(found)) == k


def test_stochastic_greedy_of_all_points_is_the_plain_one() -> None:
    distances = between(np.random.default_rng(0).normal(size=(6, 2)).tolist())
    assert facility_location(distances, 6, np.random.default_rng(1)) == facility_location(
        distances, 6
    )


def test_stochastic_cohorts_depend_on_seed_and_round_alone() -> None:
    first, again, other = (prepared([1] * 60, 4, "stochastic", seed) for seed in (0, 0, 1))
    steps = dict(enumerate(np.random.default_rng(0).normal(size=60).tolist()))
    for sampler in (first, again, other):
        move(sampler, steps)
    first.select(1)
    assert first.select(5) == again.select(5)
    assert first.select(5) != first.select(6)
    assert first.select(5) != other.select(5)
    assert len(set(first.select(5))) == 4


def prepared(
    sizes: list[int],
    per_round: int,
    greedy: Literal["plain", "stochastic"] = "plain",
    seed: int = 0,
    signal: Literal["gradient", "last_update", "all_updates"] = "last_update",
) -> DivFL:
    sampler = DivFL(signal, greedy)
    counts, shapes = torch.tensor(sizes).unsqueeze(1), {"w": torch.Size([1])}
    model = Model(shapes, frozenset({"w"}))
    sampler.setup(Setting(seed, 10, 1, 1, len(sizes), per_round, Clients.of(counts), model))
    return sampler


def move(sampler: DivFL, steps: dict[int, float]) -> None:
    start = {"w": torch.zeros(1)}
    extracts = {c: sampler.extract({"w": torch.tensor([step])}, start) for c, step in steps.items()}
    sampler.aggregate([PartUpdate(client, 1, {}, each) for client, each in extracts.items()])


def test_the_cohort_represents_all_clients() -> None:
    sampler = prepared([1, 0, 1, 1, 1, 1, 0], 2)
    move(sampler, {0: 10.0, 2: 0.0, 3: 2.0, 4: 1.0, 5: 11.0})
    # the line 0 1 2 10 11 as above: first 2 (client 3), then 10 (client 0)
    assert sampler.select(1) == sampler.select(2) == [0, 3]


def ask(sampler: DivFL, vectors: dict[int, float]) -> None:
    """A round with the answers of these clients; the others are absent."""
    sampler.limit_to(np.isin(sampler.with_data, list(vectors)))
    asked = sampler.candidates(1)
    sampler.observe({client: {"update": torch.tensor([vectors[client]])} for client in asked})
    sampler.aggregate([])
    sampler.limit_to(None)


def test_a_client_that_was_absent_is_asked_for_its_gradient_when_it_comes() -> None:
    sampler = prepared([1, 0, 1, 1], 2, signal="gradient")
    assert sampler.candidates(1) == [0, 2, 3]
    ask(sampler, {0: 1.0, 3: 5.0})
    assert sampler.candidates(2) == [2]
    ask(sampler, {2: 8.0, 3: 6.0})
    assert sampler.candidates(3) == []
    assert sampler.distances.tolist() == [[0, 7, 4], [7, 0, 3], [4, 3, 0]]


def test_clients_that_were_absent_have_the_update_zero() -> None:
    sampler = prepared([1, 1, 1], 2, signal="all_updates")
    ask(sampler, {0: 1.0, 1: 5.0, 2: 9.0})
    assert sampler.distances.tolist() == [[0, 4, 8], [4, 0, 4], [8, 4, 0]]
    ask(sampler, {1: 3.0})
    assert sampler.distances.tolist() == [[0, 3, 0], [3, 0, 3], [0, 3, 0]]


def test_one_client_represents_those_that_have_not_trained() -> None:
    sampler = prepared([1] * 8, 3)
    assert sampler.select(1) == [0, 1, 2]
    move(sampler, {0: 1.0, 1: -1.0, 2: 0.9})
    assert sampler.select(2) == [0, 1, 3]


def test_fewer_clients_with_data_than_places() -> None:
    assert prepared([0, 4, 0, 1], 3).select(1) == [1, 3]


def gradient(federation: Federation, client: int) -> Tensor:
    """Of the mean cross-entropy at the global model, by one backward pass over everything."""
    data = federation.data
    x, y = data.train.gather(data.clients[client].train_index)
    model = federation.global_model(0)
    model.train_only(("",))
    loss = F.cross_entropy(model(x), y)
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters)
    assert set(names) == set(federation.sampler.names)  # type: ignore[attr-defined]
    return torch.cat([each.flatten() for each in found])


@pytest.mark.parametrize("head", ["linear", "etf"])
def test_ideal_rounds_compare_true_gradients_and_are_counted(head: str) -> None:
    federation = federate("sampler=divfl_ideal", f"head={head}", *TINY)
    sampler = federation.sampler
    assert isinstance(sampler, DivFL)
    for round in (1, 2):
        asked = sampler.candidates(round)
        assert asked == sampler.eligible.tolist()
        gradients = [gradient(federation, client).double().tolist() for client in asked]
        expected = between(gradients)
        before, message = sampler.times_chosen.clone(), federation.server.broadcast(round).nbytes
        metrics = federation.run_round(round).metrics
        torch.testing.assert_close(sampler.distances, expected, atol=1e-5, rtol=1e-4)
        places = facility_location(expected, 2)
        chosen = (sampler.times_chosen - before).nonzero().flatten().tolist()
        assert chosen == sorted(asked[place] for place in places)
        assert metrics["cost/download_bytes"] == len(asked) * message
        answers = len(asked) * 4 * sampler.width
        assert metrics["cost/upload_bytes"] == answers + 2 * message
        assert metrics["time/probe_s"] > 0
    assert sampler.updates == {}  # gradients are computed anew each round


def test_an_answer_changes_no_weight_and_does_not_depend_on_which_are_frozen() -> None:
    federation = federate("sampler=divfl_ideal", "head=etf", "head.feature_norm=batchnorm", *TINY)
    message, engine = federation.server.broadcast(1), federation.engine
    module = federation.module
    engine.resources.load_global(message)
    before = {name: value.clone() for name, value in module.weights.items()}
    answers = []
    for frozen in ((), ("head.",), ("",)):
        module.train_only(frozen)
        ((_, answer),) = engine.probe([2], message)
        answers.append(answer["update"])
        assert all(value.grad is None for value in module.parameters())
    assert answers[0].norm() > 0
    assert torch.equal(answers[0], answers[1])
    assert torch.equal(answers[0], answers[2])
    assert all(torch.equal(before[name], value) for name, value in module.weights.items())


@pytest.mark.parametrize("head", ["linear", "etf"])
def test_two_rounds_by_last_updates_have_no_probe(head: str) -> None:
    federation = federate("sampler=divfl", f"head={head}", *TINY)
    sampler = federation.sampler
    assert isinstance(sampler, DivFL)
    for round in (1, 2):
        cohort = sampler.select(round)
        assert len(set(cohort)) == 2
        metrics = federation.run_round(round).metrics
        message = federation.server.broadcast(round).nbytes
        assert metrics["cost/download_bytes"] == 2 * message
        assert metrics["cost/upload_bytes"] == 2 * message
        assert "time/probe_s" not in metrics
        assert set(cohort) <= set(sampler.updates)


def gradients_of(federation: Federation) -> list[list[float]]:
    """Of each client with data, at the present global model."""
    clients = federation.sampler.eligible.tolist()
    return [gradient(federation, client).double().tolist() for client in clients]


MOVED = ["algorithm=fedadmm", "regularizer.start=local"]


@pytest.mark.parametrize("method", [[], ["algorithm=fedgela"], MOVED], ids=str)
def test_released_rounds_renew_the_gradients_of_each_cohort(method: list[str]) -> None:
    """Of the received model, also if its head is adapted to a client or its weights are moved."""
    federation = federate("sampler=divfl_released", *method, *TINY)
    sampler = federation.sampler
    assert isinstance(sampler, DivFL)
    known = gradients_of(federation)
    for round in (1, 2, 3):
        present = gradients_of(federation)  # at the model that this round's cohort receives
        expected = sorted(facility_location(between(known), 2))
        before = sampler.times_chosen.clone()
        message = federation.server.broadcast(round).nbytes
        metrics = federation.run_round(round).metrics
        cohort = (sampler.times_chosen - before).nonzero().flatten().tolist()
        places = [sampler.eligible.tolist().index(client) for client in cohort]
        assert places == expected
        for place in places:
            known[place] = present[place]
        torch.testing.assert_close(sampler.distances, between(known), atol=1e-5, rtol=1e-4)
        probed = len(known) if round == 1 else 0
        vector = 4 * sampler.width
        assert metrics["cost/upload_bytes"] == probed * vector + 2 * (message + vector)
        assert metrics["cost/download_bytes"] == (probed or 2) * message


def updates_of(federation: Federation, round: int) -> list[list[float]]:
    """Of each client with data, if all of them train in this round."""
    message = federation.server.broadcast(round)
    sampler: DivFL = federation.sampler  # type: ignore[assignment]
    found = {}
    for update in federation.engine.train(sampler.eligible.tolist(), message):
        steps = {name: update.weights[name] - message.weights[name] for name in sampler.names}
        found[update.client] = torch.cat([step.flatten() for step in steps.values()])
    return [found[client].double().tolist() for client in sampler.eligible.tolist()]


def test_the_copy_in_hics_compares_the_last_updates_of_all_clients() -> None:
    federation, twin = federate("sampler=divfl_hics", *TINY), federate("sampler=divfl_hics", *TINY)
    sampler = federation.sampler
    assert isinstance(sampler, DivFL)
    distances = torch.zeros(6, 6, dtype=torch.float64)
    for round in (1, 2, 3):
        twin.server.load_state_dict(federation.server.state_dict())
        following = between(updates_of(twin, round))
        draws = numpy_generator(0, "sampler", round)
        expected = sorted(facility_location(distances, 2, draws))
        before = sampler.times_chosen.clone()
        federation.run_round(round)
        assert (sampler.times_chosen - before).nonzero().flatten().tolist() == expected
        torch.testing.assert_close(sampler.distances, following, atol=1e-5, rtol=1e-4)
        distances = sampler.distances.clone()
    assert sampler.updates == {}


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_training_for_an_answer_leaves_no_trace(engine: str) -> None:
    """In round 1 all distances are 0, so that the cohort is that of last updates."""
    options = [*TINY, f"engine={engine}", "algorithm=scaffold", "personalization=fedper"]
    probing = federate("sampler=divfl_hics", *options)
    plain = federate("sampler=divfl", "sampler.greedy=stochastic", *options)
    for federation in (probing, plain):
        federation.run_round(1)
    assert probing.store.clients_with_state == plain.store.clients_with_state
    for name, weight in plain.server.weights.items():
        assert torch.equal(probing.server.weights[name], weight)
    for client in plain.store.clients_with_state:
        mine, other = (dict(f.store.memory(client, "regularizer")) for f in (probing, plain))
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], value) for name, value in other.items())


@pytest.mark.parametrize("sampler", ["divfl_released", "divfl_hics"])
def test_cohorts_are_the_same_after_a_restart(sampler: str) -> None:
    whole, resumed = (federate(f"sampler={sampler}", *TINY) for _ in range(2))
    for round in (1, 2):
        whole.run_round(round)
    resumed.server.load_state_dict(through_a_file(whole.server.state_dict()))
    for round in (3, 4):
        for federation in (whole, resumed):
            federation.run_round(round)
        for name, weight in whole.server.weights.items():
            assert torch.equal(resumed.server.weights[name], weight)
    states = [each.sampler.times_chosen for each in (whole, resumed)]
    assert torch.equal(*states)
