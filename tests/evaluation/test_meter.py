from collections.abc import Iterator

import pytest
import torch
from federations import federate

from fedexp.core.messages import Message, Update
from fedexp.evaluation.meter import Meter


def update(client: int, n: int, loss: float) -> Update:
    return Update(client, n, {"w": torch.zeros(5)}, metrics={"loss": loss})


def begun(message: Message) -> Meter:
    meter = Meter()
    meter.begin_round(message)
    return meter


def test_losses_and_bytes_by_hand() -> None:
    meter = begun(Message(1, {"w": torch.zeros(10)}))
    meter.count_cohort([0, 1, 2])
    updates = [update(0, 1, 1.0), update(1, 3, 2.0)]
    assert list(meter.count_arrivals(updates)) == updates
    for each in updates:
        meter.observe(each)
    metrics = meter.metrics()
    assert metrics["cost/download_bytes"] == 3 * 40  # who drops out has downloaded too
    assert metrics["cost/upload_bytes"] == 2 * 20
    assert metrics["train/loss"] == (1 * 1 + 3 * 2) / 4
    assert metrics["train/loss_std"] == 0.5


def test_cross_entropy_is_a_plain_mean_over_clients_and_its_deviation() -> None:
    meter = begun(Message(1, {}))
    for client, (n, value) in enumerate([(1, 1.0), (3, 2.0), (8, 6.0)]):
        metrics = {"loss": 0.5, "cross_entropy": value, "part/norm": 2 * value}
        meter.observe(Update(client, n, {}, metrics=metrics))
    found = meter.metrics()
    assert found["train/cross_entropy"] == 3.0
    assert found["train/cross_entropy_std"] == pytest.approx((14 / 3) ** 0.5)  # 4 + 1 + 9
    assert (found["train/loss"], found["train/loss_std"]) == (0.5, 0.0)
    assert found["part/norm"] == 6.0
    assert not {"loss", "cross_entropy", "part/norm_std"} & set(found)


def test_an_empty_cohort_has_no_loss() -> None:
    meter = begun(Message(1, {}))
    assert list(meter.count_arrivals([])) == []
    assert set(meter.metrics()) == {
        "cost/download_bytes",
        "cost/upload_bytes",
        "time/select_s",
        "time/train_s",
        "time/server_s",
    }


def test_time_waiting_is_training_and_the_rest_is_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("fedexp.evaluation.meter.time.perf_counter", lambda: now[0])

    def train() -> Iterator[Update]:
        for client in range(2):
            now[0] += 5
            yield update(client, 1, 0.0)

    meter = begun(Message(1, {}))
    meter.count_cohort([0, 1])
    for _ in meter.count_arrivals(train()):
        now[0] += 1
    metrics = meter.metrics()
    assert metrics["time/train_s"] == 10
    assert metrics["time/server_s"] == 2


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_round_reports_the_cross_entropy_beside_the_objective(engine: str) -> None:
    small = ["clients.count=4", "clients.per_round=2", "local.epochs=2", "data.subset=100"]
    federation = federate(*small, "algorithm=fedprox", "regularizer.mu=10", f"engine={engine}")
    metrics = federation.run_round(1).metrics
    assert 0 < metrics["train/cross_entropy"] < metrics["train/loss"]  # the proximal term
    assert metrics["train/cross_entropy_std"] > 0
