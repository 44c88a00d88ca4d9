"""Every engine reports the mean batch cross-entropy of each client's last local epoch."""

import pytest
import torch
from support.federations import federate
from torch import Tensor

from fedexp.runtime.federation import Federation

SMALL = ["clients.count=6", "clients.per_round=5", "data.subset=200", "local.epochs=3"]
SMALL += ["partition.beta=0.5", "optimizer.momentum=0", "optimizer.weight_decay=0"]


def reported(federation: Federation, round: int = 1) -> dict[int, float]:
    """Client -> cross-entropy in its update, of all clients."""
    updates = federation.engine.train(range(6), federation.server.broadcast(round))
    return {update.client: update.metrics["cross_entropy"] for update in updates}


@pytest.mark.matrix
@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=fedprox", "regularizer.mu=1"],  # the penalty is in the loss alone
        ["algorithm=fedrep"],  # the last phase counts
        ["algorithm=ditto"],  # the shared model counts
        ["algorithm=fedsc"],
        ["algorithm=fedavg", "faults=unreliable", "faults.straggle=0.5"],
    ],
    ids=" ".join,
)
def test_all_engines_report_the_same(overrides: list[str]) -> None:
    serial, vectorized, trainer = (
        reported(federate(*SMALL, *overrides, f"engine={engine}"))
        for engine in ("serial", "vectorized", "trainer")
    )
    assert trainer == serial
    assert vectorized == pytest.approx(serial, abs=1e-5)


def test_penalties_do_not_count() -> None:
    small = [*SMALL, "local.epochs=1", "local.batch_size=1000"]  # one step, from the global model
    plain = reported(federate(*small))
    penalized = reported(federate(*small, "algorithm=fedlc"))
    assert penalized == plain
    losses = [
        {u.client: u.metrics["loss"] for u in f.engine.train(range(6), f.server.broadcast(1))}
        for f in (federate(*small), federate(*small, "algorithm=fedlc"))
    ]
    assert losses[0] == pytest.approx(plain)
    assert losses[1] != pytest.approx(plain)


def test_nothing_is_recorded_before_the_last_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting(*arguments: Tensor) -> Tensor:
        calls.append(arguments)
        return torch.zeros(())

    monkeypatch.setattr("fedexp.core.client.cross_entropy", counting)
    federation = federate(*SMALL)
    (update,) = federation.engine.train([0], federation.server.broadcast(1))
    assert len(calls) == -(-update.num_samples // 16)
    assert update.metrics["cross_entropy"] == 0
    assert not federation.module.turn.in_last_epoch
