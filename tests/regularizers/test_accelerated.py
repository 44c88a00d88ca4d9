"""FedACG on parabolas, against the released code's algorithm in NumPy."""

import numpy as np
import pytest
import torch
from support.federations import federate
from support.plain_loop import SETTING
from support.quadratic import LR, STEPS, Parabolas

from fedexp.regularizers.accelerated import Accelerated

MU, MOMENTUM = 0.5, 0.6
OPTIONS = ("algorithm=fedacg", f"regularizer.mu={MU}", f"regularizer.momentum={MOMENTUM}")


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_rounds_of_partial_cohorts_against_numpy(engine: str) -> None:
    rounds = 5
    scene = Parabolas(*OPTIONS, f"engine={engine}", "clients.per_round=2")
    w, m = np.zeros(2), np.zeros(2)
    for cohort in scene.cohorts(rounds):
        ahead, steps = w + MOMENTUM * m, []
        for k in cohort:
            local = ahead.copy()
            for _ in range(STEPS):
                gradient = scene.curvature[k] * local - scene.pull[k] + MU * (local - ahead)
                local = local - LR * gradient
            steps.append(local - ahead)
        m = MOMENTUM * m + np.mean(steps, axis=0)
        w = w + m
    scene.run(rounds)
    np.testing.assert_allclose(scene.w, w, atol=1e-5)


@pytest.mark.slow
def test_without_momentum_it_is_fedprox_to_the_bit() -> None:
    pulled = [f"regularizer.mu={MU}", "clients.per_round=2"]
    found = Parabolas("algorithm=fedacg", "regularizer.momentum=0", *pulled)
    expected = Parabolas("regularizer=proximal", *pulled)
    for scene in (found, expected):
        scene.run(3)
    assert (found.w == expected.w).all()


def test_one_model_is_sent_each_way_and_another_is_evaluated() -> None:
    federation = federate(*SETTING, "algorithm=fedacg")
    start = federation.server.weights
    model = sum(value.nbytes for value in start.values())
    records = [federation.run_round(1)]
    message = federation.server.broadcast(2)
    sent = message.to_client(0).weights
    for name, value in message.weights.items():
        ahead = value + 0.85 * (value - start[name])
        torch.testing.assert_close(sent[name], ahead)
        assert not torch.equal(sent[name], value)
    records.append(federation.run_round(2))
    for cost in ("cost/upload_bytes", "cost/download_bytes"):
        assert [each.metrics[cost] for each in records] == [3 * model] * 2


@pytest.mark.slow
def test_it_combines_with_other_sockets() -> None:
    options = ["algorithm=fednh", "regularizer=accelerated", "gradient=sam"]
    federation = federate(*SETTING, *options, "personalization=fedper")
    for round in (1, 2, 3):
        assert federation.run_round(round).metrics["train/loss"] > 0
    part = federation.server.parts["regularizer"]
    assert isinstance(part, Accelerated)
    assert not any(name.startswith("head") for name in part.step)
