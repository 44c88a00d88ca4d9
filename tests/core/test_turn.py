"""The record of a turn, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.federations import federate

from fedexp.core.messages import Message
from fedexp.core.turn import Turn

NOTHING: Any = SimpleNamespace(num_samples=0)


def turn() -> Turn:
    return Turn(NOTHING, Message(1, {}), 1)


def test_measurements_are_summed_over_the_steps_and_losses_averaged() -> None:
    record = turn()
    for loss, seen in ((1.0, 2), (4.0, 3), (7.0, 1)):
        record.took_step(torch.tensor(loss), {"loss": {"seen": torch.tensor(seen)}}, None)
    record.finish()
    assert record.steps == 3
    assert record.measured == {"loss": {"seen": 6}}
    assert record.fitted == {"loss": 4}


def test_the_cross_entropy_is_that_of_the_last_epoch() -> None:
    record = turn()
    record.begin_last_phase(steps=3, steps_in_epoch=2)
    for cross_entropy in (1.0, 2.0, 6.0):
        record.took_step(torch.zeros(()), {}, torch.tensor(cross_entropy))
    record.finish()
    assert record.fitted["cross_entropy"] == 4
    assert not record.in_last_epoch


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_every_engine_gives_each_client_a_turn_of_its_own(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = federate(
        *["clients.count=3", "clients.per_round=3", "data.subset=90", "partition.beta=0.3"],
        *["local.epochs=2", "local.batch_size=8", "schedule=cosine", "rounds=4"],
        f"engine={engine}",
    )
    module = federation.module
    turns = []

    def report(client: Any, memory: Any) -> Any:
        turns.append(client.turn)
        return {}

    monkeypatch.setattr(module.loss, "report", report)
    (*_,) = federation.engine.train([0, 1, 2], federation.server.broadcast(3))
    assert sorted(each.data.client for each in turns) == [0, 1, 2]
    for each in turns:
        assert each.steps == 2 * -(-each.data.num_samples // 8)
        assert each.round == each.message.round == 3
        assert each.learning_rate == module.optimizer.learning_rate(3)  # type: ignore[attr-defined]
        assert each.fitted["cross_entropy"] > 0
