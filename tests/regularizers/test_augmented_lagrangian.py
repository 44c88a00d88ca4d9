"""FedADMM on parabolas, against its equations in NumPy, and by its messages."""

from typing import Any

import numpy as np
import pytest
import torch
from support.federations import federate
from support.plain_loop import SETTING
from support.quadratic import CLIENTS, LR, NAME, STEPS, Parabolas

from fedexp.testing import check_part

RHO = 0.5
OPTIONS = ("algorithm=fedadmm", f"regularizer.rho={RHO}")


def admm(scene: Parabolas, rounds: int, eta: Any, start: str) -> tuple[np.ndarray, ...]:
    """(theta, w, y). With ``reset`` it is the released code; the other starts keep w."""
    theta, y = np.zeros(2), np.zeros((CLIENTS, 2))
    w = np.zeros((CLIENTS, 2))  # the initial model
    for cohort in scene.cohorts(rounds):
        changes = []
        for k in cohort:
            if start == "reset":
                w[k] = theta
            before = w[k] + y[k] / RHO
            if start == "global":
                w[k] = theta
            for _ in range(STEPS):
                gradient = scene.curvature[k] * w[k] - scene.pull[k]
                w[k] = w[k] - LR * (gradient + y[k] + RHO * (w[k] - theta))
            y[k] = y[k] + RHO * (w[k] - theta)
            changes.append(w[k] + y[k] / RHO - before)
        share = len(cohort) / CLIENTS
        theta = theta + (share if eta == "participation" else eta) * np.mean(changes, axis=0)
    return theta, w, y


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
@pytest.mark.parametrize(
    ("eta", "start"), [(1.0, "local"), ("participation", "global"), (0.7, "reset")]
)
def test_rounds_of_partial_cohorts_against_numpy(eta: Any, start: str, engine: str) -> None:
    rounds = 6
    options = [f"regularizer.eta={eta}", f"regularizer.start={start}", f"engine={engine}"]
    scene = Parabolas(*OPTIONS, *options, "clients.per_round=2")
    theta, w, y = admm(scene, rounds, eta, start)
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, theta, atol=2e-5)
    for k in range(CLIENTS):
        memory = scene.memory(k)
        np.testing.assert_allclose(RHO * memory[f"drift/{NAME}"], y[k], atol=2e-5)
        if start != "reset":
            np.testing.assert_allclose(memory[f"model/{NAME}"], w[k], atol=2e-5)


def test_with_eta_of_participation_it_ends_at_the_global_optimum() -> None:
    words = ["regularizer.eta=participation", "regularizer.start=local"]
    scene = Parabolas(*OPTIONS, *words, "clients.per_round=2")
    scene.run(80)
    np.testing.assert_allclose(scene.w, scene.optimum, atol=5e-3)


def test_what_crosses_the_network() -> None:
    """One model each way; from the second round, new clients also download the initial model."""
    words = ["algorithm=fedadmm", "regularizer.start=local", "clients.per_round=2"]
    federation = federate(*SETTING, *words)
    start = federation.server.weights
    model = sum(value.nbytes for value in start.values())
    met: set[int] = set()
    for round in (1, 2, 3, 4):
        cohort = set(federation.sampler.select(round))
        metrics = federation.run_round(round).metrics
        new = len(cohort - met) if met else 0
        met |= cohort
        assert metrics["cost/upload_bytes"] == 2 * model
        assert metrics["cost/download_bytes"] == (2 + new) * model
    message, others = federation.server.broadcast(5), set(range(5)) - met
    assert others
    for client in others:
        sent = message.to_client(client).extras["regularizer"]
        assert all(torch.equal(sent[f"initial/{name}"], value) for name, value in start.items())


def test_a_refused_update_leaves_the_client_as_it_was() -> None:
    words = [
        "algorithm=fedadmm",
        "regularizer.start=local",
        "faults=unreliable",
        "faults.nan=0.5",
        "faults.drop=0",
    ]
    federation = federate(*SETTING, *words)
    for round in (1, 2, 3):
        federation.run_round(round)
    part: Any = federation.server.parts["regularizer"]
    kept = {client for client, memory in federation.store.memories("regularizer").items() if memory}
    assert kept == set(part.met.nonzero().flatten().tolist())
    assert 0 < len(kept) < 5


@pytest.mark.slow
def test_it_combines_with_other_sockets() -> None:
    options = ["algorithm=fednh", "regularizer=augmented_lagrangian", "gradient=sam"]
    options += ["regularizer.start=local", "regularizer.rho=1"]
    federation = federate(*SETTING, *options, "personalization=fedper")
    for round in (1, 2, 3):
        metrics = federation.run_round(round).metrics
        assert 0 < metrics["train/loss"] < 100


@pytest.mark.slow
@pytest.mark.parametrize("start", ["local", "global"])
def test_the_contract(start: str) -> None:
    check_part("algorithm=fedadmm", f"regularizer.start={start}")
