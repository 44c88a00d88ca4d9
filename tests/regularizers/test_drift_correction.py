import numpy as np
import pytest
import torch
from support.federations import federate
from support.quadratic import CLIENTS, LR, NAME, STEPS, OneNumber, Parabolas
from support.state_files import through_a_file

from fedexp.regularizers.drift_correction import DriftCorrection

SMALL = ["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=300"]


@pytest.mark.parametrize(("estimate", "own"), [("corrected", 0.75), ("last", 0.5)])
def test_two_rounds_by_hand(estimate: str, own: float) -> None:
    """With alpha = 0.5, everybody in the second round."""
    scene = OneNumber(DriftCorrection(0.5, estimate, "all", "uniform", "none", "none"))  # type: ignore[arg-type]
    scene.begin(0, w=1.0)
    assert scene.gradient(3.0) == pytest.approx(0.5 * (3 - 1))
    report = scene.end(0, w=0.5, steps=2, lr=0.5)  # g_0 = 0.5, d_0 = -0.5
    assert report == {"variate/w": pytest.approx(0.5)}
    # g = 0.25, the mean drift is -0.25
    assert scene.merge(1.0, 0.5, report) == pytest.approx(0.5 - 0.25)
    scene.begin(0, w=2.0)
    assert scene.gradient(3.0) == pytest.approx(0.5 * (3 - 0.5 - 2) + 0.25 - 0.5)
    first = scene.end(0, w=1.0, steps=4, lr=0.5)  # a mean step of 0.5, less 0.25 plus 0.5 for g
    assert scene.memories[0]["variate/w"].item() == pytest.approx(own)
    assert scene.memories[0]["drift/w"].item() == pytest.approx(-1.5)
    scene.begin(1, w=2.0)
    assert scene.gradient(3.0) == pytest.approx(0.5 * (3 - 2) + 0.25)
    second = scene.end(1, w=2.5, steps=4, lr=0.5)  # a mean step of -0.25, d_1 = 0.5
    assert scene.memories[1]["drift/w"].item() == pytest.approx(0.5)
    assert scene.merge(2.0, 1.75, first, second) == pytest.approx(1.75 + (0.5 - 1.5) / 2)
    other = scene.memories[1]["variate/w"].item()
    assert other == pytest.approx(-0.5 if estimate == "corrected" else -0.25)
    assert scene.part.broadcast(3)["variate/w"].item() == pytest.approx((own + other) / 2)


def test_the_penalty_by_hand() -> None:
    scene = OneNumber(DriftCorrection(0.5, "corrected", "all", "uniform", "none", "none"))
    scene.begin(0, w=1.0)
    scene.merge(1.0, 0.5, scene.end(0, w=0.5, steps=2, lr=0.5))
    scene.begin(0, w=2.0)
    penalty = scene.part([("w", torch.tensor([3.0])), ("v", torch.tensor([9.0]))])
    assert penalty == pytest.approx(0.25 * (3 - 0.5 - 2) ** 2 + 3 * (0.25 - 0.5))


def test_private_parameters_are_not_penalized() -> None:
    scene = OneNumber(DriftCorrection(0.5, "corrected", "cohort", "uniform", "none", "none"))
    scene.begin(0, w=1.0)
    assert scene.part([("v", torch.tensor([9.0], requires_grad=True))]) == 0
    assert set(scene.end(0, w=0.5, steps=1, lr=1.0)) == {"variate/w", "drift/w"}


@pytest.mark.parametrize("drifts", ["all", "cohort"])
@pytest.mark.parametrize("estimate", ["corrected", "last"])
def test_rounds_of_partial_cohorts_against_numpy(estimate: str, drifts: str) -> None:
    rounds, alpha = 5, 0.3
    scene = Parabolas(
        *("regularizer=drift_correction", f"regularizer.alpha={alpha}", "clients.per_round=2"),
        *(f"regularizer.estimate={estimate}", f"regularizer.drifts={drifts}"),
    )
    w, drift, own = np.zeros(2), np.zeros((CLIENTS, 2)), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained, g = [], own.mean(axis=0)
        for k in cohort:
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k]
                local = local - LR * (gradient + alpha * (local + drift[k] - w) + g - own[k])
            trained.append(local)
            drift[k] += local - w
        for k, local in zip(cohort, trained, strict=True):
            step = (w - local) / (STEPS * LR)
            own[k] = step if estimate == "last" else own[k] - g + step
        counted = range(CLIENTS) if drifts == "all" else cohort
        w = np.mean(trained, axis=0) + np.mean([drift[k] for k in counted], axis=0)
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=2e-5)
    for k in range(CLIENTS):
        memory = scene.memory(k)
        np.testing.assert_allclose(memory.get(f"drift/{NAME}", 0), drift[k], atol=2e-5)
        np.testing.assert_allclose(memory.get(f"variate/{NAME}", 0), own[k], atol=2e-5)


def test_the_implementation_released_with_fedptr_against_numpy() -> None:
    """alpha / s_k, g / s_k; g_k <- g_k - g / s_k + mean step; g <- g + (1/N) sum s_k (change)."""
    rounds, alpha = 6, 0.3
    scene = Parabolas(
        *("regularizer=drift_correction", f"regularizer.alpha={alpha}", "clients.per_round=2"),
        *("regularizer.weighting=samples", "regularizer.alpha_scaling=samples"),
        "regularizer.correction_scaling=samples",
    )
    size = scene.sizes / scene.sizes.mean()
    w, g, own, drift = np.zeros(2), np.zeros(2), np.zeros((CLIENTS, 2)), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained, before = [], own.copy()
        for k in cohort:
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k]
                pull = alpha / size[k] * (local + drift[k] - w)
                local = local - LR * (gradient + pull + g / size[k] - before[k])
            own[k] = before[k] - g / size[k] + (w - local) / (STEPS * LR)
            drift[k] += local - w
            trained.append(local)
        w = np.mean(trained, axis=0) + drift.mean(axis=0)
        g = g + sum(size[k] * (own[k] - before[k]) for k in cohort) / CLIENTS
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=3e-5)
    np.testing.assert_allclose(scene.part.broadcast(0)[f"variate/{NAME}"], g, atol=3e-5)


def test_gradients_as_estimates_by_hand() -> None:
    scene = OneNumber(DriftCorrection(0.5, "gradient", "all", "uniform", "none", "none"))
    scene.slope = 3.0
    scene.begin(0, w=1.0)
    assert scene.end(0, w=0.5, steps=2, lr=0.5) == {"variate/w": 3.0}
    assert scene.memories[0] == {"variate/w": 3.0, "drift/w": -0.5}


def test_an_absent_client_keeps_its_memory() -> None:
    scene = Parabolas("regularizer=drift_correction", "clients.per_round=1")
    (first,), (second,) = scene.cohorts(2)
    assert first != second
    scene.run(1)
    before = {name: value.copy() for name, value in scene.memory(first).items()}
    scene.federation.run_round(2)
    assert set(before) == {f"drift/{NAME}", f"variate/{NAME}"}
    for name, value in scene.memory(first).items():
        assert (value == before[name]).all()


@pytest.mark.parametrize(("estimate", "alpha"), [("corrected", 0.1), ("last", 1)])
def test_it_ends_at_the_global_optimum(estimate: str, alpha: float) -> None:
    """Where FedAvg, by another test, does not."""
    scene = Parabolas(
        *("regularizer=drift_correction", f"regularizer.alpha={alpha}", "clients.per_round=4"),
        f"regularizer.estimate={estimate}",
    )
    scene.run(14)
    np.testing.assert_allclose(scene.w, scene.optimum, atol=2e-3)


@pytest.mark.matrix
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_weighting_decides_whose_optimum_it_is(weighting: str) -> None:
    aggregator = {"uniform": "uniform", "samples": "sample_weighted"}[weighting]
    scene = Parabolas(
        *("regularizer=drift_correction", "regularizer.alpha=0.1", "clients.per_round=4"),
        *(f"regularizer.weighting={weighting}", f"aggregator={aggregator}"),
    )
    scene.run(40)
    expected = scene.samples_optimum if weighting == "samples" else scene.optimum
    np.testing.assert_allclose(scene.w, expected, atol=2e-3)


@pytest.mark.parametrize("drifts", ["all", "cohort"])
def test_without_alpha_it_is_fedavg_to_the_bit(drifts: str) -> None:
    plain = federate(*SMALL, "optimizer.momentum=0")
    without = federate(
        *SMALL,
        *("optimizer.momentum=0", "regularizer=drift_correction", "regularizer.alpha=0"),
        f"regularizer.drifts={drifts}",
    )
    for round in (1, 2):
        expected, found = plain.run_round(round).metrics, without.run_round(round).metrics
        assert expected["cost/upload_bytes"] == found["cost/upload_bytes"]
    for name, value in plain.server.weights.items():
        assert torch.equal(value, without.server.weights[name])


@pytest.mark.parametrize(("drifts", "up"), [("all", 2), ("cohort", 3)])
def test_what_crosses_the_network(drifts: str, up: int) -> None:
    federation = federate(*SMALL, "algorithm=feddc", f"regularizer.drifts={drifts}")
    model = sum(value.nbytes for value in federation.server.weights.values())
    records = [federation.run_round(round) for round in (1, 2)]
    uploads = [record.metrics["cost/upload_bytes"] for record in records]
    assert uploads == [3 * up * model, 3 * up * model]
    assert [record.metrics["cost/download_bytes"] for record in records] == [3 * model, 6 * model]


def test_server_state_is_restored() -> None:
    def part() -> OneNumber:
        return OneNumber(DriftCorrection(0.5, "corrected", "all", "uniform", "none", "none"))

    scene = part()
    scene.begin(0, w=1.0)
    scene.merge(1.0, 0.5, scene.end(0, w=0.5, steps=2, lr=0.5))
    restored = part()
    restored.part.load_server_state(through_a_file(scene.part.server_state()))
    assert restored.part.broadcast(2) == {"variate/w": torch.tensor([0.25])}
    assert restored.merge(0.25, 0.25, {}) == pytest.approx(0.25 - 0.25)


def test_with_a_fixed_head_and_prototypes() -> None:
    federation = federate(
        *SMALL, "algorithm=feddc", "head=etf", "loss=rpcl_cpdr", "local.grad_clip=10"
    )
    losses = [federation.run_round(round).metrics["train/loss"] for round in (1, 2)]
    assert np.isfinite(losses).all()
    sent = federation.server.broadcast(3).extras["regularizer"]
    assert sent
    assert not any("head" in key for key in sent)
