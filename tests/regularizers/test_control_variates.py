import logging

import numpy as np
import pytest
import torch
from support.federations import federate
from support.quadratic import CLIENTS, LR, NAME, STEPS, OneNumber, Parabolas
from support.state_files import through_a_file

from fedexp.regularizers.control_variates import ControlVariates

SMALL = ["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
KEY = f"variate/{NAME}"


def test_two_rounds_by_hand() -> None:
    scene = OneNumber(ControlVariates("uniform", "steps", "none"))
    scene.begin(0, w=1.0)
    assert scene.gradient(5.0) == 0
    report = scene.end(0, w=0.5, steps=2, lr=0.5)  # c_0 = (1 - 0.5) / (2 * 0.5)
    assert report == {"variate/w": pytest.approx(0.5)}
    assert scene.merge(1.0, 0.5, report) == 0.5  # c = 0.5 / 2
    scene.begin(0, w=2.0)
    assert scene.gradient(5.0) == pytest.approx(0.25 - 0.5)
    first = scene.end(0, w=1.0, steps=4, lr=0.5)  # c_0 = 0.5 - 0.25 + 0.5
    scene.begin(1, w=2.0)
    assert scene.gradient(5.0) == pytest.approx(0.25)
    second = scene.end(1, w=2.5, steps=4, lr=0.5)  # c_1 = 0 - 0.25 - 0.25
    assert scene.memories[0]["variate/w"].item() == pytest.approx(0.75)
    assert scene.memories[1]["variate/w"].item() == pytest.approx(-0.5)
    assert scene.merge(2.0, 1.75, first, second) == 1.75
    assert scene.part.broadcast(3)["variate/w"].item() == pytest.approx((0.75 - 0.5) / 2)


def test_steps_count_from_where_training_starts() -> None:
    scene = OneNumber(ControlVariates("uniform", "steps", "none"))
    scene.begin(0, w=1.0, start=3.0)  # another part, such as FedALA, has moved the client
    report = scene.end(0, w=2.0, steps=2, lr=0.5)
    assert report == {"variate/w": pytest.approx((3.0 - 2.0) / (2 * 0.5))}
    assert list(scene.memories[0]) == ["variate/w"]


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_the_length_of_steps_is_that_of_the_optimizer_that_trains(engine: str) -> None:
    """pFedMe takes steps of plain SGD, although the local optimizer has momentum."""
    words = ["algorithm=pfedme", "regularizer=control_variates", f"engine={engine}"]
    federation = federate(*SMALL, *words)
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    assert update.steps > 1
    length = update.steps * federation.engine.resources.module.learning_rate
    for name in ("head.linear.weight", "head.linear.bias"):
        step = (message.weights[name] - update.weights[name]) / length
        torch.testing.assert_close(update.extras["regularizer"][f"variate/{name}"], step)


@pytest.mark.parametrize("method", ["control_variates", "drift_correction"])
def test_stacked_clients_may_start_from_different_weights(method: str) -> None:
    own = [*SMALL, f"regularizer={method}", "personalization=ifca", "personalization.clusters=2"]
    own += ["partition.beta=0.1"]
    serial, stacked = federate(*own), federate(*own, "engine=vectorized")
    for round in (1, 2):
        serial.run_round(round)
        stacked.run_round(round)
        used = [each.server.metrics()["personalization/clusters"] for each in (serial, stacked)]
        assert used == [2, 2]
    for client in serial.store.clients_with_state:
        found = stacked.store.memory(client, "regularizer")
        expected = serial.store.memory(client, "regularizer")
        assert expected
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_clients_without_data_are_not_counted() -> None:
    scene = OneNumber(
        ControlVariates("uniform", "steps", "none"), class_counts=torch.tensor([[3], [0], [0], [2]])
    )
    scene.begin(0, w=1.0)
    scene.merge(1.0, 0.5, scene.end(0, w=0.5, steps=1, lr=1.0))
    assert scene.part.broadcast(2)["variate/w"].item() == pytest.approx(0.5 / 2)


def test_private_parameters_alone_are_not_corrected() -> None:
    scene = OneNumber(ControlVariates("uniform", "steps", "none"))
    scene.begin(0, w=1.0)
    assert scene.part([("v", torch.tensor([7.0], requires_grad=True))]) == 0
    assert set(scene.end(0, w=0.5, steps=1, lr=1.0)) == {"variate/w"}


@pytest.mark.parametrize(
    ("weighting", "aggregator"), [("uniform", "uniform"), ("samples", "sample_weighted")]
)
def test_rounds_of_partial_cohorts_against_numpy(weighting: str, aggregator: str) -> None:
    rounds = 6
    scene = Parabolas(
        *("regularizer=control_variates", f"regularizer.weighting={weighting}"),
        *(f"aggregator={aggregator}", "clients.per_round=2"),
    )
    counts = scene.sizes if weighting == "samples" else np.ones(CLIENTS)
    w, c, own = np.zeros(2), np.zeros(2), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained, before = [], own.copy()
        for k in cohort:
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k]
                local = local - LR * (gradient - before[k] + c)
            own[k] = before[k] - c + (w - local) / (STEPS * LR)
            trained.append(local)
        w = np.average(trained, axis=0, weights=counts[cohort])
        c = c + np.average(own - before, axis=0, weights=counts)
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=1e-5)
    np.testing.assert_allclose(scene.part.broadcast(0)[KEY], c, atol=1e-5)
    for k in range(CLIENTS):
        np.testing.assert_allclose(scene.memory(k).get(KEY, np.zeros(2)), own[k], atol=1e-5)


def test_an_absent_client_keeps_its_variate() -> None:
    scene = Parabolas("regularizer=control_variates", "clients.per_round=1")
    (first,), (second,) = scene.cohorts(2)
    assert first != second
    scene.run(1)
    before = scene.memory(first)[KEY].copy()
    scene.federation.run_round(2)
    assert (scene.memory(first)[KEY] == before).all()
    assert before.any()


def test_the_servers_variate_is_the_mean_of_the_clients() -> None:
    federation = federate(*SMALL, "algorithm=scaffold")
    for round in (1, 2, 3):
        federation.run_round(round)
    memories = federation.store.memories("regularizer")
    assert 3 <= len(memories) <= 5
    for key, mean in federation.server.broadcast(4).extras["regularizer"].items():
        total = sum(memory[key].double() for memory in memories.values())
        torch.testing.assert_close(mean.double(), total / 5, atol=1e-6, rtol=0)


def test_it_ends_at_the_global_optimum_and_fedavg_does_not() -> None:
    scene = Parabolas("regularizer=control_variates", "clients.per_round=4")
    scene.run(14)
    np.testing.assert_allclose(scene.w, scene.optimum, atol=2e-3)
    fedavg = Parabolas("clients.per_round=4")
    fedavg.run(14)
    assert np.abs(fedavg.w - fedavg.optimum).max() > 0.1


@pytest.mark.matrix
@pytest.mark.parametrize("aggregator", ["uniform", "sample_weighted"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_weighting_decides_whose_optimum_it_is(weighting: str, aggregator: str) -> None:
    scene = Parabolas(
        *("regularizer=control_variates", f"regularizer.weighting={weighting}"),
        *(f"aggregator={aggregator}", "clients.per_round=4"),
    )
    assert np.abs(scene.optimum - scene.samples_optimum).min() > 0.05
    scene.run(40)
    expected = scene.samples_optimum if weighting == "samples" else scene.optimum
    np.testing.assert_allclose(scene.w, expected, atol=2e-3)


def test_the_first_round_is_fedavgs_to_the_bit() -> None:
    plain = federate(*SMALL, "aggregator=uniform", "optimizer.momentum=0", "optimizer.lr=0.05")
    corrected = federate(*SMALL, "algorithm=scaffold", "optimizer.lr=0.05")
    for each in (plain, corrected):
        each.run_round(1)
    for name, value in plain.server.weights.items():
        assert torch.equal(value, corrected.server.weights[name])


def test_what_crosses_the_network() -> None:
    """Twice the model up, and from the second round twice the model down."""
    federation = federate(*SMALL, "algorithm=scaffold")
    model = sum(value.nbytes for value in federation.server.weights.values())
    records = [federation.run_round(round) for round in (1, 2)]
    assert [record.metrics["cost/upload_bytes"] for record in records] == [6 * model, 6 * model]
    assert [record.metrics["cost/download_bytes"] for record in records] == [3 * model, 6 * model]


def test_server_state_is_restored() -> None:
    scene = Parabolas("regularizer=control_variates", "clients.per_round=2")
    scene.run(2)
    restored = Parabolas("regularizer=control_variates", "clients.per_round=2").part
    assert restored.broadcast(3) == {}
    restored.load_server_state(through_a_file(scene.part.server_state()))
    assert torch.equal(restored.broadcast(3)[KEY], scene.part.broadcast(3)[KEY])
    assert restored.broadcast(3)[KEY].any()


@pytest.mark.parametrize(
    ("estimate", "momentum"), [("steps", 0.9), ("auto", 0.5), ("gradient", 0.9), ("gradient", 0.0)]
)
def test_rounds_with_momentum_against_numpy(estimate: str, momentum: float) -> None:
    """Option II divides by the sum of weights of the gradients; option I takes that at w^t."""
    rounds, lr = 5, 0.05
    scene = Parabolas(
        *("regularizer=control_variates", f"regularizer.estimate={estimate}", "optimizer=sgd"),
        *(f"optimizer.momentum={momentum}", f"optimizer.lr={lr}", "clients.per_round=2"),
    )
    weights = [sum(momentum**age for age in range(STEPS - step)) for step in range(STEPS)]
    w, c, own = np.zeros(2), np.zeros(2), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained, before = [], own.copy()
        for k in cohort:
            local, velocity = w.copy(), np.zeros(2)
            seen = []
            for _ in range(STEPS):
                seen.append(scene.curvature[k] * local - scene.pull[k])
                velocity = momentum * velocity + seen[-1] - before[k] + c
                local = local - lr * velocity
            own[k] = seen[0] if estimate == "gradient" else np.average(seen, 0, weights)
            trained.append(local)
        w = np.mean(trained, axis=0)
        c = c + (own - before).mean(axis=0)
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=2e-5)
    np.testing.assert_allclose(scene.part.broadcast(0)[KEY], c, atol=2e-5)
    for k in range(CLIENTS):
        memory = scene.memory(k)
        assert memory.keys() <= {KEY}
        np.testing.assert_allclose(memory.get(KEY, np.zeros(2)), own[k], atol=2e-5)


@pytest.mark.parametrize("estimate", ["steps", "gradient"])
def test_with_momentum_it_ends_at_the_global_optimum(estimate: str) -> None:
    scene = Parabolas(
        *("regularizer=control_variates", f"regularizer.estimate={estimate}"),
        *("optimizer.momentum=0.9", "optimizer.lr=0.02", "clients.per_round=4"),
    )
    scene.run(40)
    np.testing.assert_allclose(scene.w, scene.optimum, atol=5e-3)


def test_option_one_by_hand() -> None:
    scene = OneNumber(ControlVariates("uniform", "gradient", "none"))
    scene.slope = 3.0
    scene.begin(0, w=1.0)
    assert scene.gradient(5.0) == 0
    assert scene.end(0, w=0.5, steps=2, lr=0.5) == {"variate/w": 3.0}
    assert set(scene.memories[0]) == {"variate/w"}
    scene.slope = 4.0
    scene.begin(0, w=1.0)
    assert scene.gradient(5.0) == -3.0  # the server has not merged: c is zero
    assert scene.end(0, w=9.9, steps=7, lr=0.1) == {"variate/w": 1.0}
    assert scene.memories[0] == {"variate/w": 4.0}


def test_the_implementation_released_with_fedptr_against_numpy() -> None:
    """Gradient - c_k + c / s_k; c_k <- c_k - c + mean step; c <- c + (1/N) sum s_k (change)."""
    rounds = 6
    scene = Parabolas(
        *("regularizer=control_variates", "regularizer.weighting=samples"),
        *("regularizer.correction_scaling=samples", "clients.per_round=2"),
    )
    size = scene.sizes / scene.sizes.mean()
    assert size.max() / size.min() > 1.5
    w, c, own = np.zeros(2), np.zeros(2), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained, before = [], own.copy()
        for k in cohort:
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k]
                local = local - LR * (gradient - before[k] + c / size[k])
            own[k] = before[k] - c + (w - local) / (STEPS * LR)
            trained.append(local)
        w = np.mean(trained, axis=0)
        c = c + sum(size[k] * (own[k] - before[k]) for k in cohort) / CLIENTS
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=2e-5)
    np.testing.assert_allclose(scene.part.broadcast(0)[KEY], c, atol=2e-5)


@pytest.mark.parametrize(
    ("overrides", "level", "start"),
    [
        (["optimizer=adam"], logging.INFO, "regularizer.estimate=auto: "),
        (
            ["optimizer=adam", "regularizer.estimate=steps"],
            logging.WARNING,
            "regularizer.estimate=",
        ),
        (["optimizer=adam", "regularizer.estimate=gradient"], None, ""),
        (["optimizer.momentum=0.9"], None, ""),
    ],
)
def test_it_says_once_how_it_deals_with_an_adaptive_optimizer(
    overrides: list[str], level: int | None, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    federation = federate(*SMALL, "regularizer=control_variates", *overrides)
    with caplog.at_level(logging.INFO, "fedexp.regularizers"):
        for round in (1, 2):
            federation.run_round(round)
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert [each for each, _ in found] == ([] if level is None else [level])
    assert all(message.startswith(start) for _, message in found)


@pytest.mark.slow
def test_option_one_in_serial_and_vectorized() -> None:
    options = ["algorithm=scaffold", "regularizer.estimate=gradient"]
    serial, stacked = (federate(*SMALL, *options, f"engine={e}") for e in ("serial", "vectorized"))
    for round in (1, 2, 3):
        serial.run_round(round)
        stacked.run_round(round)
    for name, value in serial.server.weights.items():
        torch.testing.assert_close(value, stacked.server.weights[name], atol=1e-5, rtol=1e-4)


def test_with_a_fixed_head_and_prototypes() -> None:
    federation = federate(
        *SMALL, "algorithm=scaffold", "head=etf", "loss=rpcl_cpdr", "local.grad_clip=10"
    )
    losses = [federation.run_round(round).metrics["train/loss"] for round in (1, 2)]
    assert np.isfinite(losses).all()
    sent = federation.server.broadcast(3).extras["regularizer"]
    assert sent
    assert not any("head" in key for key in sent)
