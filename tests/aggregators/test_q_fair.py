"""q-FedAvg against Algorithm 2 of the paper, as it is printed, and in short runs."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate

from fedexp.aggregators.average import Average
from fedexp.aggregators.q_fair import QFair
from fedexp.core.messages import Tensors, Update
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.testing import check_part

SMALL = ["clients.count=6", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
Q = ["algorithm=qfedavg", *SMALL]


def prepared(q: float, lipschitz: float | None) -> QFair:
    part = QFair(q, lipschitz)
    part.setup(
        Setting(0, 2, 2, 2, 3, 3, Clients.of(torch.ones(3, 2)), Model({"w": torch.Size([2])}))
    )
    return part


def update(client: int, loss: float, w: list[float], draws: int = 1) -> Update:
    weights = {"w": torch.tensor(w, dtype=torch.float64), "mean": torch.tensor([float(client)])}
    sent = {"loss": torch.tensor(loss), "learning_rate": torch.tensor(0.5)}
    return Update(client, client + 1, weights, {"aggregator": sent}, draws=draws)


def start() -> Tensors:
    return {"w": torch.tensor([1.0, -1.0], dtype=torch.float64), "mean": torch.zeros(1)}


UPDATES = [update(0, 2.0, [2.0, -1.0]), update(1, 0.5, [1.0, 1.0]), update(2, 1.5, [0.0, 0.0])]


def merged(part: Average, updates: list[Update]) -> Tensors:
    for each in updates:
        part.add(each, start())
    return part.merge(start())


@pytest.mark.parametrize("q", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("lipschitz", [None, 5.0])
def test_the_step_is_that_of_the_algorithm(q: float, lipschitz: float | None) -> None:
    current, scale = start()["w"], lipschitz or 1 / 0.5
    deltas, estimates = torch.zeros(2, dtype=torch.float64), 0.0
    for each in UPDATES:
        loss = each.extras["aggregator"]["loss"].item()
        gradient = scale * (current - each.weights["w"])
        deltas += loss**q * gradient
        estimates += q * loss ** (q - 1) * gradient.square().sum().item() + scale * loss**q
    found = merged(prepared(q, lipschitz), UPDATES)
    torch.testing.assert_close(found["w"], current - deltas / estimates)


def test_the_step_by_hand() -> None:
    # q = 1, L = 2: Delta = -2 F D, h = 4 ||D||^2 + 2 F; D = (1, 0), (0, 2): sum F D = (2, 1)
    part = prepared(1, None)
    found = merged(part, UPDATES[:2])
    assert found["w"].tolist() == pytest.approx([1 + 4 / 25, -1 + 2 / 25])  # h = 8 + 17
    # F / sum F = (4/5, 1/5): the buffer of client 1 counts a fifth
    assert found["mean"].item() == pytest.approx(0.2)
    assert part.metrics() == {"aggregator/step_size": pytest.approx(2.5 / (2.5 + 2 * 5))}


def test_q_zero_is_the_uniform_average_to_the_bit() -> None:
    found, expected = merged(prepared(0, None), UPDATES), merged(Average("uniform"), UPDATES)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_client_that_is_drawn_twice_counts_as_two() -> None:
    twice = merged(prepared(0.5, 3), [update(0, 2.0, [2.0, -1.0], draws=2), UPDATES[1]])
    apart = merged(prepared(0.5, 3), [UPDATES[0], UPDATES[0], UPDATES[1]])
    torch.testing.assert_close(twice["w"], apart["w"])


@pytest.mark.parametrize("q", [0.0, 0.5])
def test_a_loss_of_zero_gives_numbers(q: float) -> None:
    found = merged(prepared(q, 1), [update(0, 0.0, [1.0, -1.0]), UPDATES[1]])
    assert found["w"].isfinite().all()


@pytest.mark.parametrize("losses", [(1e30, 0.5), (1e30, 1e30)])
def test_a_power_beyond_all_numbers_gives_a_model_that_is_refused(
    losses: tuple[float, float],
) -> None:
    updates = [update(client, loss, [2.0, -1.0]) for client, loss in enumerate(losses)]
    assert not merged(prepared(15, None), updates)["w"].isfinite().any()


def test_a_client_reports_the_loss_of_the_received_model() -> None:
    federation = federate(*Q, "head=cosine")
    federation.run_round(1)
    message = federation.server.broadcast(2)
    model = federation.global_model(1)
    (inputs, labels), *rest = federation.data.clients[2].batches(1000)
    assert not rest
    with torch.no_grad():
        expected = F.cross_entropy(model(inputs), labels)
    (found,) = federation.engine.train([2], message)
    torch.testing.assert_close(found.extras["aggregator"]["loss"], expected)
    assert found.extras["aggregator"]["learning_rate"].item() == pytest.approx(0.05)
    assert federation.store.memory(2, "aggregator") == {}


def test_q_zero_is_fedavg_with_equal_weights() -> None:
    fedavg = federate(*SMALL, "aggregator=uniform", "sampler=weighted", "optimizer=sgd_plain")
    found = federate(*Q, "aggregator.q=0")
    for round in (1, 2):
        fedavg.run_round(round)
        found.run_round(round)
    for name, value in fedavg.server.weights.items():
        assert torch.equal(found.server.weights[name], value), name


@pytest.mark.parametrize(("overrides", "numbers"), [([], 2), (["aggregator.lipschitz=20"], 1)])
def test_the_bytes_sent_are_counted(overrides: list[str], numbers: int) -> None:
    one = federate(*SMALL).run_round(1).metrics
    other = federate(*Q, *overrides).run_round(1).metrics
    assert other["cost/upload_bytes"] - one["cost/upload_bytes"] == 3 * 4 * numbers
    assert other["cost/download_bytes"] == one["cost/download_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedprox", "fednh", "fedrep", "creff"])
def test_it_combines_with_other_methods(method: str) -> None:
    quick = ["head.match_steps=2", "head.retrain_epochs=1"] if method == "creff" else []
    federation = federate(f"algorithm={method}", "aggregator=q_fair", *quick, *SMALL)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
    assert math.isfinite(metrics["train/loss"])
    assert 0 < metrics["aggregator/step_size"] < 1


@pytest.mark.parametrize("override", ["aggregator.q=-1", "aggregator.lipschitz=0"])
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=rf"^{override}: should be"):
        federate(*Q, override)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("algorithm=qfedavg", "aggregator.q=1")
