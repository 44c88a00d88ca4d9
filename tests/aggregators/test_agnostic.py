"""AFL: a round by hand, and short runs against a loop."""

import math

import numpy as np
import pytest
import torch
from support.federations import federate
from torch import Tensor

from fedexp.aggregators.agnostic import Agnostic
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.server import Server
from fedexp.core.simplex_projection import nearest_in_simplex
from fedexp.testing import check_part

SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
AFL = ["algorithm=afl", *SMALL]


def prepared(lr: float, sizes: Tensor) -> Agnostic:
    part = Agnostic(lr)
    clients, model = Clients.of(sizes[:, None]), Model({"w": torch.Size([1])})
    part.setup(Setting(0, 3, 1, 2, len(sizes), 2, clients, model))
    return part


def update(client: int, loss: float, w: float, draws: int = 1) -> Update:
    extras = {"aggregator": {"loss": torch.tensor(loss)}}
    return Update(client, 7, {"w": torch.tensor([w])}, extras, draws=draws)


def round_of(part: Agnostic, updates: list[Update], current: Tensors) -> float:
    for each in updates:
        part.add(each, current)
    merged = part.merge(current)["w"].item()
    part.aggregate([each.to("aggregator") for each in updates])
    return merged


def test_two_rounds_by_hand() -> None:
    part = prepared(0.1, torch.tensor([5, 5, 0, 5, 5]))  # client 2 has no data: N = 4
    current = {"w": torch.tensor([9.0])}
    assert round_of(part, [update(0, 1.0, 2.0), update(4, 3.0, 6.0)], current) == 4
    # 1/4 + 0.1 * 4/2 * F = (0.45, 0.25, -, 0.25, 0.85); minus theta = 0.2
    assert part.mixture.tolist() == pytest.approx([0.25, 0.05, 0, 0.05, 0.65])
    assert part.metrics() == {"aggregator/largest_weight": pytest.approx(0.65)}
    found = round_of(part, [update(1, 0.0, 2.0, draws=2), update(4, 0.0, 6.0)], current)
    assert found == pytest.approx((2 * 0.05 * 2 + 0.65 * 6) / 0.75)


def test_a_cohort_without_weight_changes_nothing() -> None:
    part = prepared(1.0, torch.tensor([5, 5]))
    current = {"w": torch.tensor([9.0])}
    round_of(part, [update(0, 8.0, 1.0)], current)
    assert part.mixture.tolist() == [1, 0]
    assert round_of(part, [update(1, 0.0, 3.0)], current) == 9
    assert round_of(part, [update(0, 0.0, 3.0)], current) == 3  # client 1 is forgotten


def test_a_cohort_without_weight_gets_some_if_its_loss_is_large() -> None:
    part = prepared(1.0, torch.tensor([5, 5]))
    server = Server({"w": torch.tensor([9.0])}, {"aggregator": part})
    for each in (update(0, 8.0, 1.0), update(1, 8.0, 3.0)):
        server.add(each)
        server.step()
    # after (1, 0) the second round gives (1, 0 + 2 * 8) before the projection
    assert part.mixture.tolist() == [0, 1]
    assert server.weights["w"].item() == 1


def test_two_processes_weigh_as_one() -> None:
    sizes, current = torch.tensor([5, 5, 5]), {"w": torch.tensor([0.0])}
    alone, *ranks = (prepared(0.1, sizes) for _ in range(3))
    first = [update(0, 3.0, 1.0), update(1, 1.0, 2.0)]
    for each in (alone, *ranks):
        round_of(each, first, current)
    updates = [update(0, 3.0, 1.0), update(2, 1.0, 8.0)]
    for rank, each in zip(ranks, updates, strict=True):
        alone.add(each, current)
        rank.add(each, current)
    shares = [rank.contribution() for rank in ranks]
    ranks[0].set_reduced(
        {name: shares[0].sums[name] + shares[1].sums[name] for name in shares[0].sums},
        [share.items for share in shares],
    )
    assert torch.equal(ranks[0].merge(current)["w"], alone.merge(current)["w"])


def test_rounds_against_a_loop() -> None:
    federation = federate(*AFL, "aggregator.lr=0.05")
    mixture, current = np.full(6, 1 / 6), dict(federation.server.weights)
    for round in (1, 2, 3):
        cohort = federation.sampler.select(round)
        updates = {
            each.client: each
            for each in federation.engine.train(cohort, federation.server.broadcast(round))
        }
        for each in updates.values():
            federation.server.add(each)
        federation.server.step()
        total = sum(mixture[client] for client in cohort)
        for name in current:
            current[name] = sum(mixture[c] * updates[c].weights[name] for c in cohort) / total
            torch.testing.assert_close(federation.server.weights[name], current[name].float())
        gradient = np.zeros(6)
        for client in cohort:
            gradient[client] = 2 * updates[client].extras["aggregator"]["loss"].item()  # N / K
        mixture = mixture + 0.05 * gradient
        mixture = nearest_in_simplex(torch.from_numpy(mixture)).numpy()
    assert federation.server.aggregator.server_state()["mixture"].tolist() == pytest.approx(
        mixture.tolist(), rel=1e-5, abs=1e-8
    )


def test_without_steps_of_the_weights_it_is_uniform_fedavg() -> None:
    fedavg, found = federate(*SMALL, "aggregator=uniform"), federate(*AFL, "aggregator.lr=0")
    for round in (1, 2):
        fedavg.run_round(round)
        metrics = found.run_round(round).metrics
    assert metrics["aggregator/largest_weight"] == pytest.approx(1 / 6)
    for name, value in fedavg.server.weights.items():
        torch.testing.assert_close(found.server.weights[name], value, atol=1e-6, rtol=1e-5)


def test_a_client_sends_one_number_more() -> None:
    one, other = federate(*SMALL).run_round(1).metrics, federate(*AFL).run_round(1).metrics
    assert other["cost/upload_bytes"] - one["cost/upload_bytes"] == 3 * 4
    assert other["cost/download_bytes"] == one["cost/download_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedprox", "fednh", "fedrep"])
def test_it_combines_with_other_methods(method: str) -> None:
    federation = federate(f"algorithm={method}", "aggregator=agnostic", *SMALL)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
    assert math.isfinite(metrics["train/loss"])
    assert 1 / 6 < metrics["aggregator/largest_weight"] < 1


def test_a_sampler_that_prefers_large_clients_is_discouraged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    federate(*AFL, "sampler=weighted")
    assert "aggregator=agnostic: the weights of large clients" in caplog.text


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=afl", "aggregator.lr=0.1")
