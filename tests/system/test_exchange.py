from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedexp.core.messages import Message, Update
from fedexp.measures.cost import Cost
from fedexp.measures.training import mean_metrics
from fedexp.system.exchange import Exchange


def update(client: int, n: int, loss: float) -> Update:
    return Update(client, n, {"w": torch.zeros(5)}, metrics={"loss": loss})


def metrics(exchange: Exchange) -> dict[str, float]:
    """What ``cost`` and ``training`` measure at the end of the round."""
    exchange.end()
    after: Any = SimpleNamespace(exchange=exchange, server=SimpleNamespace(state_nbytes=7))
    return {**Cost()(after).metrics, **mean_metrics(exchange.receipts)}


def test_losses_and_bytes_by_hand() -> None:
    exchange = Exchange(Message(1, {"w": torch.zeros(10)}))
    exchange.count_cohort([0, 1, 2])
    updates = [update(0, 1, 1.0), update(1, 3, 2.0)]
    assert list(exchange.count_arrivals(updates)) == updates
    for each in updates:
        exchange.observe(each)
    found = metrics(exchange)
    assert found["cost/download_bytes"] == 3 * 40  # who drops out has downloaded too
    assert found["cost/upload_bytes"] == 2 * 20
    assert found["cost/server_memory_bytes"] == 7
    assert found["train/loss"] == (1 * 1 + 3 * 2) / 4
    assert found["train/loss_std"] == 0.5


def test_a_client_that_answers_and_trains_downloads_once() -> None:
    exchange = Exchange(Message(1, {"w": torch.zeros(10)}))
    exchange.count_answers([(n, {"loss": torch.zeros(1)}) for n in (0, 1)])
    exchange.count_cohort([1, 2])
    list(exchange.count_arrivals([update(1, 1, 0.0)]))
    found = metrics(exchange)
    assert found["cost/download_bytes"] == 3 * 40
    assert found["cost/upload_bytes"] == 2 * 4 + 20
    assert "time/probe_s" in found


def test_two_processes_add_up() -> None:
    shares = [Exchange(Message(1, {})) for _ in range(2)]
    for client, exchange in enumerate(shares):
        list(exchange.count_arrivals([update(client, 1, 0.0)]))
        exchange.observe(update(client, client + 1, 4.0 * client))
    items = [exchange.contribution().items for exchange in shares]
    for exchange in shares:
        exchange.set_reduced({}, items)
        found = metrics(exchange)
        assert found["cost/upload_bytes"] == 2 * 20
        assert found["train/loss"] == (1 * 0 + 2 * 4) / 3


def test_an_empty_cohort_has_no_loss() -> None:
    exchange = Exchange(Message(1, {}))
    assert list(exchange.count_arrivals([])) == []
    assert set(metrics(exchange)) == {
        "cost/download_bytes",
        "cost/upload_bytes",
        "cost/server_memory_bytes",
        "time/select_s",
        "time/train_s",
        "time/server_s",
    }


def test_time_waiting_is_training_and_the_rest_is_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr("fedexp.system.exchange.time.perf_counter", lambda: now[0])

    def train() -> Iterator[Update]:
        for client in range(2):
            now[0] += 5
            yield update(client, 1, 0.0)

    exchange = Exchange(Message(1, {}))
    exchange.count_cohort([0, 1])
    for _ in exchange.count_arrivals(train()):
        now[0] += 1
    found = metrics(exchange)
    assert found["time/train_s"] == 10
    assert found["time/server_s"] == 2


def test_clients_that_are_chosen_while_the_server_waits_for_updates_take_time_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in a buffered round, which chooses clients when it is asked for its first update."""
    now = [0.0]
    monkeypatch.setattr("fedexp.system.exchange.time.perf_counter", lambda: now[0])
    exchange = Exchange(Message(1, {}))

    def choose_and_train() -> Iterator[Update]:
        for client in range(2):
            now[0] += 3
            exchange.count_cohort([client])
            now[0] += 5
            yield update(client, 1, 0.0)

    list(exchange.count_arrivals(choose_and_train()))
    found = metrics(exchange)
    assert found["time/select_s"] == 3
    assert found["time/train_s"] == 5 + 3 + 5
    assert found["time/server_s"] == 0
