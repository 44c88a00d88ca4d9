"""FedDisco's weights by hand, by a loop, and in short runs."""

import math

import pytest
import torch
from support.federations import federate

from fedexp.aggregators.disco import Disco, disco_weights, discrepancy
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.testing import check_part

SMALL = ["clients.count=6", "clients.per_round=4", "local.epochs=1", "data.subset=300"]
ONE = torch.ones(3, dtype=torch.float64)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_distance_of_distributions_by_hand() -> None:
    counts, uniform = torch.tensor([3, 1, 0, 0]), torch.full((4,), 0.25)
    expected = 0.75 * math.log(3) + 0.25 * math.log(1)  # a class without samples adds 0
    assert discrepancy(counts, uniform, "kl").item() == pytest.approx(expected)
    # D - T = (1/2, 0, -1/4, -1/4)
    assert discrepancy(counts, uniform, "l2").item() == pytest.approx(math.sqrt(3 / 8))
    own = torch.tensor([0.75, 0.25, 0.0, 0.0])
    assert discrepancy(counts, own, "kl") == discrepancy(counts, own, "l2") == 0


def test_the_weights_by_hand() -> None:
    # n = (1/2, 1/4, 1/4), d / sum d = (0, 1/4, 3/4): n - d/2 + 0.1 = (0.6, 0.225, -0.025)
    found = disco_weights(numbers(20, 10, 10), numbers(0, 1, 3), ONE, 0.5, 0.1, relative=True)
    assert found.tolist() == pytest.approx([0.6 / 0.825, 0.225 / 0.825, 0])
    # undivided: n - d/10 + 0.1 = (0.6, 0.25, 0.05)
    found = disco_weights(numbers(20, 10, 10), numbers(0, 1, 3), ONE, 0.1, 0.1, relative=False)
    assert found.tolist() == pytest.approx([0.6 / 0.9, 0.25 / 0.9, 0.05 / 0.9])


@pytest.mark.parametrize(("distances", "a"), [((1, 1, 1), 100), ((0, 0, 0), 0.5)])
def test_without_a_positive_or_a_different_weight_samples_count(
    distances: tuple[float, ...], a: float
) -> None:
    found = disco_weights(numbers(20, 10, 10), numbers(*distances), ONE, a, 0, relative=True)
    assert found.tolist() == [0.5, 0.25, 0.25]


def test_a_client_that_is_drawn_twice_counts_as_two() -> None:
    draws = numbers(2, 1)
    found = disco_weights(numbers(10, 20), numbers(1, 3), draws, 0.5, 0.1, relative=True)
    apart = disco_weights(numbers(10, 10, 20), numbers(1, 1, 3), ONE, 0.5, 0.1, relative=True)
    assert found.tolist() == pytest.approx([2 * apart[0].item(), apart[2].item()])


def prepared(a: float, b: float) -> Disco:
    part = Disco("kl", "uniform", a, b, relative=True)
    counts = torch.ones(3, 2, dtype=torch.int64)
    part.setup(Setting(0, 1, 2, 2, 3, 3, Clients.of(counts), Model({})))
    return part


def update(client: int, samples: int, distance: float) -> Update:
    weights = {"w": torch.tensor([float(client)]), "n": torch.tensor(client)}
    return Update(client, samples, weights, {"aggregator": {"discrepancy": torch.tensor(distance)}})


def test_the_average_by_hand_in_any_order() -> None:
    current: Tensors = {"w": torch.zeros(1), "n": torch.tensor(9)}
    updates = [update(0, 20, 0.0), update(1, 10, 1.0), update(2, 10, 3.0)]
    found = []
    for order in (updates, updates[::-1]):
        part = prepared(0.5, 0.1)
        for each in order:
            part.add(each, current)
        found.append(part.merge(current))
        assert part.metrics() == {"aggregator/left_out": pytest.approx(1 / 3)}
    assert found[0]["w"].item() == pytest.approx(0.225 / 0.825)
    assert found[0]["n"] == 0  # of the largest client
    assert torch.equal(found[0]["w"], found[1]["w"])


def test_a_run_weighs_clients_by_their_classes() -> None:
    federation = federate("algorithm=feddisco", *SMALL)
    message = federation.server.broadcast(1)
    cohort = list(federation.sampler.select(1))
    updates = sorted(federation.engine.train(cohort, message), key=lambda each: each.client)
    counts = torch.stack([federation.data.clients[c].class_counts for c in sorted(cohort)]).double()
    shares = counts / counts.sum(dim=1, keepdim=True)
    distances = torch.special.entr(shares).sum(dim=1).neg() + math.log(10)
    scores = counts.sum(1) / counts.sum() - 0.5 * distances / distances.sum() + 0.1
    scores = scores.clamp(min=0) / scores.clamp(min=0).sum()
    for each in updates:
        federation.server.add(each)
    federation.server.step()
    for name, value in federation.server.weights.items():
        expected = sum(p * u.weights[name] for p, u in zip(scores.tolist(), updates, strict=True))
        torch.testing.assert_close(value, expected)


def test_a_client_sends_one_number_and_gets_the_target_of_a_population() -> None:
    fedavg, disco = federate(*SMALL), federate("algorithm=feddisco", *SMALL)
    population = federate("algorithm=feddisco", "aggregator.target=population", *SMALL)
    plain, uniform, other = (f.run_round(1).metrics for f in (fedavg, disco, population))
    for each, classes in ((uniform, 0), (other, 10)):
        assert each["cost/upload_bytes"] - plain["cost/upload_bytes"] == 4 * 4
        assert each["cost/download_bytes"] - plain["cost/download_bytes"] == 4 * 4 * classes
    counts = population.data.class_counts.double().sum(dim=0)
    sent = population.server.broadcast(1).extras["aggregator"]["target"]
    torch.testing.assert_close(sent.double(), counts / counts.sum())
    client = next(iter(population.sampler.select(1)))
    (report,) = population.engine.train([client], population.server.broadcast(1))
    own = population.data.clients[client].class_counts
    torch.testing.assert_close(
        report.extras["aggregator"]["discrepancy"], discrepancy(own, sent, "kl").float()
    )


def test_without_distance_and_bias_it_is_fedavg() -> None:
    fedavg = federate("algorithm=fedavg", *SMALL)
    disco = federate("algorithm=feddisco", *SMALL, "aggregator.a=0", "aggregator.b=0")
    for round in (1, 2):
        fedavg.run_round(round)
        disco.run_round(round)
    for name, value in fedavg.server.weights.items():
        torch.testing.assert_close(disco.server.weights[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["feddyn", "scaffold", "fednh", "ditto"])
def test_it_combines_with_other_methods(method: str) -> None:
    federation = federate(f"algorithm={method}", "aggregator=disco", *SMALL)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
    assert math.isfinite(metrics["train/loss"])
    assert 0 <= metrics["aggregator/left_out"] < 1


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=feddisco", "aggregator.target=population")
