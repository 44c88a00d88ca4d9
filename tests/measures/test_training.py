import math

import pytest
from support.federations import federate

from fedexp.core.messages import Update
from fedexp.measures.training import mean_metrics
from fedexp.system.exchange import receipt


def test_cross_entropy_is_a_plain_mean_over_clients_and_its_deviation() -> None:
    receipts = []
    for client, (n, value) in enumerate([(1, 1.0), (3, 2.0), (8, 6.0)]):
        metrics = {"loss": 0.5, "cross_entropy": value, "part/norm": 2 * value}
        receipts.append(receipt(Update(client, n, {}, metrics=metrics)))
    found = mean_metrics(receipts)
    assert found["train/cross_entropy"] == 3.0
    assert found["train/cross_entropy_std"] == pytest.approx((14 / 3) ** 0.5)  # 4 + 1 + 9
    assert (found["train/loss"], found["train/loss_std"]) == (0.5, 0.0)
    assert found["part/norm"] == 6.0
    assert not {"loss", "cross_entropy", "part/norm_std"} & set(found)
    assert mean_metrics(receipts[::-1]) == found


def test_a_metric_is_the_mean_over_the_clients_that_logged_it() -> None:
    logged = [{"part/gap": 1.0}, {}, {"part/gap": 4.0}]
    receipts = [receipt(Update(n, 1, {}, metrics=each)) for n, each in enumerate(logged)]
    assert mean_metrics(receipts) == {"part/gap": 2.5}


def test_infinite_losses_of_both_signs_have_no_mean() -> None:
    """A penalty that diverges may be infinite with either sign."""
    losses = (math.inf, -math.inf, 1.0)
    receipts = [receipt(Update(n, 1, {}, metrics={"loss": x})) for n, x in enumerate(losses)]
    found = mean_metrics(receipts)
    assert math.isnan(found["train/loss"])
    assert math.isnan(found["train/loss_std"])


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_a_round_reports_the_cross_entropy_beside_the_objective(engine: str) -> None:
    small = ["clients.count=4", "clients.per_round=2", "local.epochs=2", "data.subset=100"]
    federation = federate(*small, "algorithm=fedprox", "regularizer.mu=10", f"engine={engine}")
    metrics = federation.run_round(1).metrics
    assert 0 < metrics["train/cross_entropy"] < metrics["train/loss"]  # the proximal term
    assert metrics["train/cross_entropy_std"] > 0
