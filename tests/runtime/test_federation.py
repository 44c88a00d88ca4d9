"""One and two FedAvg rounds on a linear model against the closed form, in float64 NumPy.

Clients do one full-batch step of plain SGD on softmax regression, so that a round is
w - lr * sum_k (n_k / n) gradient_k(w): the whole population's gradient step when all take part.
"""

import numpy as np
import pytest
from support.federations import federate

from fedexp.distributed.ranks import Ranks
from fedexp.runtime import federation as module
from fedexp.runtime.federation import Federation
from fedexp.tracking.tracker import Record, Tracker

LR = 0.5
PLAIN = [
    "model._target_=support.federations.flatten",
    "~model.hidden",
    "~model.feature_dim",
    "~model.rectify",
    "~model.batch_norm",
    "clients.count=5",
    "local.epochs=1",
    "local.batch_size=2000",
    f"optimizer.lr={LR}",
    "optimizer.momentum=0",
    "optimizer.weight_decay=0",
    "data.subset=400",
]
Weights = tuple[np.ndarray, np.ndarray]


def linear_federation(*overrides: str) -> Federation:
    """A federation that starts from zero and whose whole model is the head."""
    federation = federate(*PLAIN, *overrides)
    for weight in federation.server.weights.values():
        weight.zero_()
    return federation


def gradient(federation: Federation, client: int, w: Weights) -> Weights:
    """Of the mean cross-entropy over one client's data, by the textbook formula."""
    data = federation.data
    index = data.clients[client].train_index
    x = data.train.inputs[index].flatten(1).double().numpy()
    y = np.eye(10)[data.train.labels[index].numpy()]
    logits = x @ w[0].T + w[1]
    p = np.exp(logits - logits.max(1, keepdims=True))
    error = (p / p.sum(1, keepdims=True) - y) / len(x)
    return error.T @ x, error.sum(0)


def global_weights(federation: Federation) -> Weights:
    weights = federation.server.weights
    return weights["head.linear.weight"].numpy(), weights["head.linear.bias"].numpy()


def sizes(federation: Federation) -> np.ndarray:
    return np.asarray(federation.data.class_counts.sum(1), dtype=float)


@pytest.mark.parametrize("aggregator", ["sample_weighted", "uniform"])
def test_two_fedavg_rounds_in_closed_form(aggregator: str) -> None:
    federation = linear_federation("clients.per_round=5", f"aggregator={aggregator}")
    n = sizes(federation)
    shares = n / n.sum() if aggregator == "sample_weighted" else np.full(5, 0.2)
    w: Weights = (np.zeros((10, 64)), np.zeros(10))
    for round in (1, 2):
        federation.run_round(round)
        steps = [gradient(federation, client, w) for client in range(5)]
        w = (
            w[0] - LR * sum(s * g[0] for s, g in zip(shares, steps, strict=True)),
            w[1] - LR * sum(s * g[1] for s, g in zip(shares, steps, strict=True)),
        )
        found = global_weights(federation)
        np.testing.assert_allclose(found[0], w[0], atol=1e-6)
        np.testing.assert_allclose(found[1], w[1], atol=1e-6)


def test_only_the_cohort_counts() -> None:
    federation = linear_federation("clients.per_round=2")
    cohort = federation.sampler.select(1)
    federation.run_round(1)
    n = sizes(federation)[cohort]
    zero: Weights = (np.zeros((10, 64)), np.zeros(10))
    steps = [gradient(federation, client, zero) for client in cohort]
    expected = -LR * sum(m / n.sum() * g[0] for m, g in zip(n, steps, strict=True))
    np.testing.assert_allclose(global_weights(federation)[0], expected, atol=1e-6)


def test_fedprox_in_closed_form() -> None:
    """Two local steps: the second feels the pull mu (w - w^t) on what the first has moved."""
    mu = 0.8
    federation = linear_federation(
        "clients.per_round=5", "local.epochs=2", "regularizer=proximal", f"regularizer.mu={mu}"
    )
    federation.run_round(1)
    n = sizes(federation)
    expected = np.zeros((10, 64))
    for client in range(5):
        w: Weights = (np.zeros((10, 64)), np.zeros(10))
        for _ in range(2):
            g = gradient(federation, client, w)
            w = (w[0] - LR * (g[0] + mu * w[0]), w[1] - LR * (g[1] + mu * w[1]))
        expected += n[client] / n.sum() * w[0]
    np.testing.assert_allclose(global_weights(federation)[0], expected, atol=1e-6)


def test_round_decay_shrinks_the_step_of_later_rounds() -> None:
    federation = linear_federation("clients.per_round=5", "optimizer.round_decay=0.5")
    n = sizes(federation)
    w: Weights = (np.zeros((10, 64)), np.zeros(10))
    for round, lr in ((1, LR), (2, LR / 2), (3, LR / 4)):
        federation.run_round(round)
        steps = [gradient(federation, client, w) for client in range(5)]
        w = (
            w[0] - lr * sum(m / n.sum() * g[0] for m, g in zip(n, steps, strict=True)),
            w[1] - lr * sum(m / n.sum() * g[1] for m, g in zip(n, steps, strict=True)),
        )
    np.testing.assert_allclose(global_weights(federation)[0], w[0], atol=1e-6)


def test_a_run_says_one_thing_a_round_and_the_partition_before() -> None:
    class Recorder(Tracker):
        def __init__(self) -> None:
            self.records: list[Record] = []

        def log(self, record: Record) -> None:
            self.records.append(record)

    sizes = ["clients.count=4", "clients.per_round=2", "rounds=3"]
    federation = federate(*sizes, "measure.prototypes.every=2")
    recorder = Recorder()
    federation.tracker = recorder
    federation.run(3)
    assert [record.round for record in recorder.records] == [0, 1, 2, 3]
    assert [set(record.figures) for record in recorder.records] == [
        {"heatmap/partition"},
        set(),
        {"heatmap/prototype_similarity"},
        {"heatmap/prototype_similarity", "sampler/times_chosen"},
    ]
    assert recorder.records[0].metrics == {}
    assert {"global/accuracy", "train/loss", "cost/upload_bytes"} <= set(
        recorder.records[1].metrics
    )
    assert "personal/accuracy_local" in recorder.records[3].metrics


class FirstOfTwo(Ranks):
    size = 2


def test_processes_share_the_samples_that_turns_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """With equally many full batches each, all clients take equally long, whatever they hold."""
    monkeypatch.setattr(module, "ranks_of", lambda fabric: FirstOfTwo())
    words = ["clients.count=8", "clients.per_round=8", "local.batch_size=2"]
    steps, epochs = (federate(*words, each) for each in ("local.steps=1", "local.epochs=1"))
    assert steps.placement.local_clients(range(8)) == [0, 2, 4, 6]
    assert epochs.placement.local_clients(range(8)) != [0, 2, 4, 6]
