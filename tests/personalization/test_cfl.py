"""CFL, compared with a plain loop and with all bipartitions."""

from itertools import product
from typing import Any

import pytest
import torch
from support.federations import equal, federate
from support.small_federations import ONE_STEP, RATE, SMALL, copy, gradient, personal, train

from fedexp.core.cosines import cosines
from fedexp.core.messages import Message, Tensors
from fedexp.errors import InputError
from fedexp.measures.scoring.scoring import Scoring
from fedexp.personalization.cfl import Linkage, bipartition, largest_across
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

CFL = [*SMALL, "algorithm=cfl", "partition.beta=0.1"]
AT_ONCE = ["personalization.eps1=1000", "personalization.eps2=0"]
CLIENTS = (0, 1, 2, 3)


def tree(federation: Federation) -> Any:
    part: Any = federation.engine.resources.personalization
    return part._tree


def model(federation: Federation, client: int, round: int = 9) -> Tensors:
    """A copy of the weights that this client is sent."""
    return copy(federation.server.broadcast(round).to_client(client).weights)


def flat(tensors: Tensors) -> torch.Tensor:
    return torch.cat([value.flatten().double() for value in tensors.values()])


@pytest.mark.parametrize("seed", range(5))
def test_single_linkage_is_the_best_of_all_bipartitions(seed: int) -> None:
    points = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    similarity = cosines(points, points)
    torch.testing.assert_close(similarity[2, 5].item(), _cosine(points[2], points[5]))
    found = bipartition(similarity, "single")
    all_ = [torch.tensor([0, *rest]) for rest in product((0, 1), repeat=6) if any(rest)]
    best = min(largest_across(similarity, groups) for groups in all_)
    assert largest_across(similarity, found) == best


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return (a.double() @ b.double() / a.double().norm() / b.double().norm()).item()


@pytest.mark.parametrize(
    ("linkage", "expected"), [("single", [0, 0, 0, 1]), ("complete", [0, 0, 1, 1])]
)
def test_linkages_by_hand(linkage: Linkage, expected: list[int]) -> None:
    """A chain of three at 0, 35 and 72 degrees, and a point at 110."""
    angles = torch.deg2rad(torch.tensor([0.0, 35.0, 72.0, 110.0]))
    points = torch.stack([angles.cos(), angles.sin()], dim=1)
    assert bipartition(cosines(points, points), linkage).tolist() == expected


def test_equal_points_are_divided_too_and_a_zero_update_is_like_no_other() -> None:
    assert sorted(bipartition(torch.ones(3, 3), "single").tolist())[::2] == [0, 1]
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert cosines(points, points).tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_a_division_by_a_plain_loop(engine: str, weighting: str) -> None:
    """Round 1 divides, round 2 trains the parts apart."""
    options = [f"engine={engine}", f"personalization.weighting={weighting}", *AT_ONCE]
    federation = federate(*CFL, *ONE_STEP, *options)
    sizes = federation.data.sizes.tolist() if weighting == "samples" else [1] * 4
    start = model(federation, 0)
    models = _plain_round(federation, 1, dict.fromkeys(CLIENTS, start))
    steps = {client: flat(models[client]) - flat(start) for client in CLIENTS}
    best, parts = min(
        (max(_cosine(steps[i], steps[j]) for i in one for j in CLIENTS if j not in one), one)
        for one in (
            [c for c, bit in zip(CLIENTS, bits, strict=True) if bit]
            for bits in product((0, 1), repeat=4)
        )
        if 0 < len(one) < 4
    )
    train(federation, 1, CLIENTS)
    for round in (2, 3):
        means = {}
        for part in (parts, [c for c in CLIENTS if c not in parts]):
            total = sum(sizes[c] for c in part)
            mean = {n: sum(sizes[c] * models[c][n] for c in part) / total for n in start}
            means |= dict.fromkeys(part, mean)
        for client in CLIENTS:
            for name, value in model(federation, client).items():
                torch.testing.assert_close(value, means[client][name], rtol=0, atol=1e-6)
        assert federation.server.metrics()["personalization/clusters"] == 2
        if round == 2:
            _without_further_divisions(federation)
            models = _plain_round(federation, 2, means)
            train(federation, 2, CLIENTS)
    assert best < 0.9


def _plain_round(
    federation: Federation, round: int, starts: dict[int, Tensors]
) -> dict[int, Tensors]:
    """Client -> its model after one gradient step, by plain PyTorch."""
    found = {}
    for client, start in starts.items():
        g = gradient(federation, client, Message(round, start), start)
        found[client] = {name: start[name] - RATE * g[name] for name in start}
    return found


def _without_further_divisions(federation: Federation) -> None:
    part: Any = federation.engine.resources.personalization
    part.eps1 = 0


def test_norms_and_thresholds() -> None:
    federation = federate(*CFL, *ONE_STEP, "personalization.eps1=0")
    start = model(federation, 0)
    models = _plain_round(federation, 1, dict.fromkeys(CLIENTS, start))
    sizes = (federation.data.sizes / federation.data.sizes.sum()).tolist()
    steps = torch.stack([flat(models[client]) - flat(start) for client in CLIENTS])
    mean = sum(size * step for size, step in zip(sizes, steps, strict=True))
    train(federation, 1, CLIENTS)
    metrics = federation.server.metrics()
    of_mean, largest = (metrics[f"personalization/{n}_step_norm"] for n in ("mean", "largest"))
    assert of_mean == pytest.approx(torch.as_tensor(mean).norm().item(), rel=1e-4)
    assert largest == pytest.approx(steps.norm(dim=1).max().item(), rel=1e-4)
    for eps1, eps2, gamma, least, clusters in [
        (1.01, 0.99, 0.0, 4, 2),
        (0.99, 0.99, 0.0, 4, 1),
        (1.01, 1.01, 0.0, 4, 1),
        (1.01, 0.99, 1.0, 4, 1),
        (1.01, 0.99, 0.0, 5, 1),
    ]:
        again = federate(
            *CFL,
            *ONE_STEP,
            f"personalization.eps1={eps1 * of_mean}",
            f"personalization.eps2={eps2 * largest}",
            f"personalization.gamma={gamma}",
            f"personalization.min_clients={least}",
        )
        train(again, 1, CLIENTS)
        assert tree(again).leaves == clusters


@pytest.mark.parametrize(
    ("weighting", "aggregator"), [("samples", "sample_weighted"), ("uniform", "uniform")]
)
def test_without_a_division_it_is_fedavg_to_the_bit(weighting: str, aggregator: str) -> None:
    whole = federate(*CFL, "personalization.eps1=0", f"personalization.weighting={weighting}")
    plain = federate(*SMALL, "partition.beta=0.1", f"aggregator={aggregator}")
    for round in (1, 2):
        metrics = [federation.run_round(round).metrics for federation in (whole, plain)]
        for name in ("cost/upload_bytes", "cost/download_bytes", "train/loss"):
            assert metrics[0][name] == metrics[1][name]
    assert equal(model(whole, 1), plain.server.weights)


def test_two_populations_are_found() -> None:
    """Half of the clients have other labels for the same images."""
    flipped = ["faults=byzantine", "faults.attack=label_flip", "faults.byzantine=0.5"]
    many = ["clients.count=6", "clients.per_round=6", "data.subset=600", "partition.beta=100"]
    federation = federate(*CFL, *many, *flipped, *AT_ONCE, "local.epochs=2")
    train(federation, 1, range(6))
    of_faults: Any = federation.engine.resources.faults
    parts = {c: int(tree(federation).place[c]) for c in range(6)}
    assert {parts[c] for c in of_faults.byzantine_clients}.isdisjoint(
        parts[c] for c in set(range(6)) - of_faults.byzantine_clients
    )
    assert len(set(parts.values())) == 2


def test_an_absent_client_starts_where_the_cluster_was_divided_and_joins_the_nearest() -> None:
    federation = federate(*CFL, *AT_ONCE)
    initial = model(federation, 3)
    train(federation, 1, (0, 1, 2))
    assert equal(model(federation, 3), initial)
    _without_further_divisions(federation)
    before = {client: model(federation, client) for client in (0, 1, 2)}
    message = federation.server.broadcast(2)
    (update,) = federation.engine.train([3], message)
    federation.server.add(update)
    federation.server.step()
    assert [name for name in federation.server.metrics() if name.endswith("norm")] == []
    for client, value in before.items():
        assert equal(model(federation, client), value)
    steps = tree(federation).nodes[0].steps
    own = flat(update.weights) - flat(initial)
    nearest = max((0, 1, 2), key=lambda client: _cosine(steps[client], own))
    assert equal(model(federation, 3), before[nearest])
    assert not equal(model(federation, 3), initial)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_personal_model_is_the_present_model_of_the_cluster(engine: str) -> None:
    federation = federate(*CFL, *AT_ONCE, f"engine={engine}")
    train(federation, 1, CLIENTS)
    for client, found in Scoring(federation.engine).score_personal(federation.server.broadcast(1)):
        federation.module.load(model(federation, client))
        with torch.no_grad():
            inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
            right = federation.module(inputs).argmax(dim=1) == federation.data.test.labels
        assert torch.equal(found.correct, right)
    assert set(personal(federation, 1)) == set(CLIENTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        ["regularizer=proximal", "loss=ntd"],
        ["gradient=sam", "sampler=power_of_choice", "head=cosine"],
        ["regularizer=control_variates", "aggregator=uniform"],
    ],
)
def test_it_runs_with_other_sockets(method: list[str]) -> None:
    federation = federate(*CFL, *AT_ONCE, "clients.per_round=3", *method)
    for round in (1, 2, 3):
        assert 0 < federation.run_round(round).metrics["train/loss"] < 100
    assert tree(federation).leaves > 1


def test_aggregators_that_are_no_mean_are_refused() -> None:
    with pytest.raises(InputError, match=r"^aggregator: would not act on the clusters' models"):
        federate(*CFL, "aggregator=median")


@pytest.mark.slow
@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_the_contract(linkage: str) -> None:
    check_part(
        *("algorithm=cfl", "partition.beta=0.1", *AT_ONCE, "clients.per_round=3"),
        f"personalization.linkage={linkage}",
        tolerance=1e-5,
    )
