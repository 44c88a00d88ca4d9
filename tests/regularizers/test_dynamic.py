import numpy as np
import pytest
import torch
from support.federations import begin_client, federate, weights_after
from support.plain_loop import LR as PLAIN_LR
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.quadratic import CLIENTS, LR, NAME, STEPS, OneNumber, Parabolas
from support.state_files import through_a_file
from torch import nn

from fedexp.regularizers.dynamic import Dynamic

SMALL = ["clients.count=5", "clients.per_round=3", "local.epochs=1", "data.subset=300"]
KEY = f"drift/{NAME}"


def test_two_rounds_by_hand() -> None:
    """With alpha = 0.5; h_0 and h are the paper's."""
    scene = OneNumber(Dynamic(0.5, "none", True))
    scene.begin(0, w=1.0)
    assert scene.gradient(3.0) == pytest.approx(0.5 * (3 - 1))
    assert scene.end(0, w=0.6, steps=2, lr=0.1) == {}  # h_0 = -0.5 * (0.6 - 1) = 0.2
    # h = -0.5 / 2 * (0.6 - 1) = 0.1; w = 0.6 - 0.1 / 0.5
    assert scene.merge(1.0, 0.6, {}) == pytest.approx(0.4)
    scene.begin(0, w=0.4)
    assert scene.gradient(1.0) == pytest.approx(-0.2 + 0.5 * (1 - 0.4))
    scene.end(0, w=0.8, steps=2, lr=0.1)  # h_0 = 0.2 - 0.5 * 0.4 = 0
    scene.begin(1, w=0.4)
    assert scene.gradient(1.0) == pytest.approx(0.5 * (1 - 0.4))
    scene.end(1, w=0.5, steps=2, lr=0.1)  # h_1 = -0.05
    # h = 0.1 - 0.5 / 2 * (0.4 + 0.1) = -0.025; w = 0.65 + 0.025 / 0.5
    assert scene.merge(0.4, 0.65, {}, {}) == pytest.approx(0.7)
    scene.begin(0, w=0.7)
    assert scene.gradient(0.7) == pytest.approx(0, abs=1e-6)
    scene.begin(1, w=0.7)
    assert scene.gradient(0.7) == pytest.approx(0.05)


def test_the_penalty_by_hand() -> None:
    """-h w + alpha / 2 (w - w^t)^2 = -0.2 * 3 + 0.25 * 2.6^2."""
    scene = OneNumber(Dynamic(0.5, "none", True))
    scene.begin(0, w=1.0)
    scene.end(0, w=0.6, steps=2, lr=0.1)
    scene.begin(0, w=0.4)
    penalty = scene.part([("w", torch.tensor([3.0]))])
    assert penalty == pytest.approx(-0.2 * 3 + 0.25 * 2.6**2)


def test_its_gradient_by_finite_differences() -> None:
    part = OneNumber(Dynamic(0.3, "none", True)).part.double()
    part.start.set({"w": torch.tensor([0.4])})
    part.drift.set({"w": torch.tensor([-1.7])})
    w = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: part([("w", w)]), w)


def test_private_parameters_are_not_penalized() -> None:
    scene = OneNumber(Dynamic(0.5, "none", True))
    scene.begin(0, w=1.0)
    assert scene.part([("v", torch.tensor([9.0], requires_grad=True))]) == 0
    scene.end(0, w=0.5, steps=1, lr=1.0)
    assert set(scene.memories[0]) == {"drift/w"}


def test_clients_without_data_are_not_counted() -> None:
    scene = OneNumber(Dynamic(0.5, "none", True), class_counts=torch.tensor([[3], [0], [0], [2]]))
    assert scene.merge(1.0, 0.6, {}) == pytest.approx(0.6 - 0.4 / 2)


def test_rounds_of_partial_cohorts_against_numpy() -> None:
    """As the paper writes them, with h and h_k."""
    rounds, alpha = 6, 0.5
    scene = Parabolas("regularizer=dynamic", f"regularizer.alpha={alpha}", "clients.per_round=2")
    w, h, own = np.zeros(2), np.zeros(2), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained = []
        for k in cohort:
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k]
                local = local - LR * (gradient - own[k] + alpha * (local - w))
            own[k] -= alpha * (local - w)
            trained.append(local)
        h = h - alpha / CLIENTS * sum(local - w for local in trained)
        w = np.mean(trained, axis=0) - h / alpha
    np.testing.assert_allclose(h, own.mean(axis=0))
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=1e-5)
    for k in range(CLIENTS):
        drift = scene.memory(k).get(KEY, np.zeros(2))
        np.testing.assert_allclose(-alpha * drift, own[k], atol=1e-5)


def test_alpha_by_size_as_in_the_released_code_against_numpy() -> None:
    """alpha_k = alpha * mean(n) / n_k; the cohort's mean plus the mean over all of summed steps."""
    rounds, alpha = 6, 0.5
    scene = Parabolas(
        *("regularizer=dynamic", f"regularizer.alpha={alpha}", "clients.per_round=2"),
        "regularizer.alpha_scaling=samples",
    )
    w, drift = np.zeros(2), np.zeros((CLIENTS, 2))
    for cohort in scene.cohorts(rounds):
        trained = []
        for k in cohort:
            alpha_k = alpha * scene.sizes.mean() / scene.sizes[k]
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k]
                local = local - LR * (gradient + alpha_k * (local - w + drift[k]))
            drift[k] += local - w
            trained.append(local)
        w = np.mean(trained, axis=0) + drift.mean(axis=0)
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=2e-5)
    assert np.ptp(scene.sizes) > 5


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_the_clipping_of_the_released_code_against_numpy(engine: str) -> None:
    """alpha_k w is added to what is clipped: the loss's gradient and alpha_k (drift - w^t)."""
    rounds, alpha, clip = 4, 0.5, 0.2
    scene = Parabolas(
        *("regularizer=dynamic", f"regularizer.alpha={alpha}", "clients.per_round=2"),
        *("regularizer.alpha_scaling=samples", "regularizer.clip_quadratic=false"),
        *(f"local.grad_clip={clip}", f"engine={engine}"),
    )
    w, drift, clipped = np.zeros(2), np.zeros((CLIENTS, 2)), 0
    for cohort in scene.cohorts(rounds):
        trained = []
        for k in cohort:
            alpha_k = alpha * scene.sizes.mean() / scene.sizes[k]
            local = w.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k] + alpha_k * (drift[k] - w)
                norm = np.linalg.norm(gradient)
                clipped += bool(norm > clip)
                gradient *= min(1, clip / (norm + 1e-6))
                local = local - LR * (gradient + alpha_k * local)
            drift[k] += local - w
            trained.append(local)
        w = np.mean(trained, axis=0) + drift.mean(axis=0)
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=2e-5)
    assert 0 < clipped < 2 * STEPS * rounds


def test_the_preset_repeats_a_plain_loop_of_the_authors_algorithm() -> None:
    """The optimizer decays weights by alpha_k + 0.01; only the rest of the gradient is clipped."""
    decay, clip, rounds = 0.01, 0.5, 3
    options = (
        *("algorithm=feddyn", "regularizer.alpha=0.5", "partition.beta=0.1"),
        *(f"optimizer.weight_decay={decay}", f"local.grad_clip={clip}"),
    )
    loop = PlainLoop(*options)
    alphas = 0.5 * np.mean(loop.samples) / np.array(loop.samples)
    start, clipped = loop.start, 0
    drifts = [{name: torch.zeros_like(w) for name, w in start.items()} for _ in loop.samples]
    for round, cohort in loop.cohorts(rounds):
        models = []
        for k in cohort:
            model = {name: nn.Parameter(w.clone()) for name, w in start.items()}
            optimizer = torch.optim.SGD(model.values(), lr=PLAIN_LR, weight_decay=alphas[k] + decay)
            for batch in loop.batches(round, k):
                for name, gradient in loop.gradient(model, batch).items():
                    model[name].grad = gradient + alphas[k] * (drifts[k][name] - start[name])
                clipped += int(nn.utils.clip_grad_norm_(model.values(), clip) > clip)
                optimizer.step()
            models.append({name: w.detach() for name, w in model.items()})
            drifts[k] = {name: d + models[-1][name] - start[name] for name, d in drifts[k].items()}
        start = {
            name: (sum(each[name] for each in models) / len(models))
            + sum(each[name] for each in drifts) / len(drifts)
            for name in start
        }
    assert clipped
    assert alphas.max() > 2 * alphas.min()
    assert_same(weights_after(federate(*SETTING, *options), rounds), start)


def test_samples_and_uniform_end_at_the_optimum_over_all_samples() -> None:
    scene = Parabolas(*ALL, "regularizer.alpha_scaling=samples")
    assert np.abs(scene.samples_optimum - scene.optimum).max() > 0.05
    scene.run(30)
    np.testing.assert_allclose(scene.w, scene.samples_optimum, atol=2e-3)


def test_without_clipping_the_quadratic_term_is_the_same() -> None:
    whole, apart = (
        Parabolas(*ALL, f"regularizer.clip_quadratic={clip}") for clip in ("true", "false")
    )
    for scene in (whole, apart):
        scene.run(3)
    np.testing.assert_allclose(apart.w, whole.w, atol=2e-6)


def test_the_scale_counts_samples_that_a_part_keeps_from_training() -> None:
    federation = federate(
        *SMALL, "algorithm=feddyn", "~measure.mean_model", "personalization=fedfomo"
    )
    client = begin_client(federation.engine, 0, federation.server.broadcast(1))
    sizes = federation.data.class_counts.sum(dim=1).double()
    assert client.data.num_samples < sizes[0]
    strength = client.regularizer.get_buffer("relative_strength").item()
    assert strength == pytest.approx(float(sizes.mean() / sizes[0]))


@pytest.mark.slow
def test_scaled_by_samples_in_serial_and_vectorized() -> None:
    serial, stacked = (
        federate(*SMALL, "algorithm=feddyn", f"engine={e}") for e in ("serial", "vectorized")
    )
    for round in (1, 2, 3):
        serial.run_round(round)
        stacked.run_round(round)
    for name, value in serial.server.weights.items():
        torch.testing.assert_close(value, stacked.server.weights[name], atol=1e-5, rtol=1e-4)


def test_an_absent_client_keeps_its_drift() -> None:
    scene = Parabolas("regularizer=dynamic", "clients.per_round=1")
    (first,), (second,) = scene.cohorts(2)
    assert first != second
    scene.run(1)
    before = scene.memory(first)[KEY].copy()
    scene.federation.run_round(2)
    assert (scene.memory(first)[KEY] == before).all()
    assert before.any()


ALL = ("regularizer=dynamic", "regularizer.alpha=1", "clients.per_round=4")


def test_it_ends_at_the_global_optimum() -> None:
    """Where FedAvg, by another test, does not."""
    scene = Parabolas(*ALL)
    scene.run(14)
    np.testing.assert_allclose(scene.w, scene.optimum, atol=2e-3)


def test_with_weights_it_ends_at_the_weighted_optimum() -> None:
    scene = Parabolas(*ALL, "aggregator=sample_weighted")
    n = scene.federation.data.class_counts.sum(dim=1, keepdim=True).numpy()
    optimum = (n * scene.pull).sum(axis=0) / (n * scene.curvature).sum(axis=0)
    assert np.abs(optimum - scene.optimum).max() > 0.05
    scene.run(20)
    np.testing.assert_allclose(scene.w, optimum, atol=2e-3)


def test_without_alpha_it_is_fedavg_to_the_bit() -> None:
    plain = federate(*SMALL)
    without = federate(*SMALL, "regularizer=dynamic", "regularizer.alpha=0")
    for round in (1, 2):
        plain.run_round(round)
        without.run_round(round)
    for name, value in plain.server.weights.items():
        assert torch.equal(value, without.server.weights[name])


def test_it_costs_what_fedavg_costs() -> None:
    federation = federate(*SMALL, "algorithm=feddyn")
    model = sum(value.nbytes for value in federation.server.weights.values())
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/upload_bytes"] == metrics["cost/download_bytes"] == 3 * model


def test_server_state_is_restored() -> None:
    scene = OneNumber(Dynamic(0.5, "none", True))
    scene.merge(1.0, 0.6, {})
    restored = OneNumber(Dynamic(0.5, "none", True))
    restored.part.load_server_state(through_a_file(scene.part.server_state()))
    assert restored.merge(0.4, 0.65, {}, {}) == scene.merge(0.4, 0.65, {}, {})
    assert restored.merge(0.7, 0.7, {}) != 0.7


def test_with_a_fixed_head_and_prototypes() -> None:
    federation = federate(
        *SMALL, "algorithm=feddyn", "head=etf", "loss=rpcl_cpdr", "local.grad_clip=10"
    )
    losses = [federation.run_round(round).metrics["train/loss"] for round in (1, 2)]
    assert np.isfinite(losses).all()
    state = federation.server.parts["regularizer"].server_state()
    assert state["mean_drift"]
    assert not any("head" in name for name in state["mean_drift"])
