"""FedAMP against hand values, against plain PyTorch, and in federations."""

import logging
import math
from typing import Any

import pytest
import torch
from support.federations import equal, federate
from support.small_federations import (
    ONE_STEP,
    RATE,
    assert_models_agree,
    copy,
    gradient,
    personalized,
    train,
)

from fedexp.core.messages import PartMessage, PartUpdate, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.personalization.fedamp import FedAMP, attention_slope
from fedexp.testing import check_part

SIGMA, ALPHA, MU = 0.5, 0.1, 3.0
METHOD = [
    *("regularizer=proximal", f"regularizer.mu={MU}"),
    *(f"personalization.sigma={SIGMA}", f"personalization.alpha={ALPHA}"),
]


def part(sigma: float = 2.0, alpha: float = 0.5, clients: int = 3) -> FedAMP:
    """The part for a model of one parameter, a float buffer and an integer buffer."""
    shapes = {"w": torch.Size([2])}
    counts = torch.ones(clients, 2, dtype=torch.int64)
    made = FedAMP(sigma, alpha)
    shared = frozenset(["w", "mean", "steps"])
    model = Model(shapes, shared)
    made.setup(Setting(0, 5, 2, 1, clients, clients, Clients.of(counts), model))
    return made


def model(w: tuple[float, float], mean: float = 0.0, steps: int = 0) -> Tensors:
    return {"w": torch.tensor(w).float(), "mean": torch.tensor(mean), "steps": torch.tensor(steps)}


def sent_to(made: FedAMP, client: int, weights: Tensors) -> Tensors:
    return made.message_to(client, PartMessage(1, weights)).weights


def test_a_cloud_model_by_hand() -> None:
    """Squared distances: 1 from client 0 to 1, 4 from 0 to 2; the buffers do not count."""
    made = part()
    models = {0: model((0, 0), 0.0, 7), 1: model((0, 1), 8.0, 8), 2: model((2, 0), -4.0, 9)}
    made.aggregate([PartUpdate(c, 1, {}, m) for c, m in models.items()])
    near, far = 0.5 * math.exp(-1 / 2) / 2, 0.5 * math.exp(-4 / 2) / 2
    found = sent_to(made, 0, model((5, 5)))
    torch.testing.assert_close(found["w"], torch.tensor([2 * far, near]))
    torch.testing.assert_close(found["mean"], torch.tensor(8 * near - 4 * far))
    assert found["steps"] == 7
    assert found["w"].dtype == torch.float32


def test_a_client_without_a_model_gets_the_global_weights_and_gives_nothing() -> None:
    made, everyone = part(), model((5, 5))
    made.aggregate([PartUpdate(1, 1, {}, model((1, 2)))])
    assert sent_to(made, 0, everyone) is everyone
    assert equal(sent_to(made, 1, everyone), model((1, 2)))


def test_the_slope_is_the_derivative_of_the_attention() -> None:
    x, step, sigma = 1.7, 1e-6, 2.5
    rise = (1 - math.exp(-(x + step) / sigma)) - (1 - math.exp(-(x - step) / sigma))
    assert attention_slope(x, sigma) == pytest.approx(rise / (2 * step), rel=1e-6)


def test_a_negative_weight_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        part(sigma=2.0, alpha=1.0)
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        part(sigma=2.0, alpha=1.1)
    assert "personalization.sigma / 2 = 1" in caplog.text


def cloud_model(models: dict[int, Tensors], client: int) -> Tensors:
    """u_i by the definition: a weighted sum of all models."""
    flat = {c: torch.cat([w.flatten() for w in m.values()]).double() for c, m in models.items()}
    weights = {
        c: ALPHA * math.exp(-(w - flat[client]).square().sum().item() / SIGMA) / SIGMA
        for c, w in flat.items()
        if c != client
    }
    weights[client] = 1 - sum(weights.values())
    return {
        name: sum(weights[c] * models[c][name] for c in models)  # type: ignore[misc]
        for name in models[client]
    }


def test_two_rounds_by_plain_pytorch() -> None:
    """In round 2 two steps from u_i; the pull is zero at the first."""
    federation = personalized("fedamp", *METHOD, *ONE_STEP, "local.epochs=2")
    train(federation, 1, (0, 1, 3))
    models = {client: copy(federation.store.model(client)) for client in (0, 1, 3)}
    message = federation.server.broadcast(2)
    cloud = cloud_model(models, 1)
    assert max((cloud[n] - models[1][n]).abs().max() for n in cloud) > 1e-3
    for name, value in message.to_client(1).weights.items():
        torch.testing.assert_close(value, cloud[name])

    (update,) = federation.engine.train([1], message)
    g = gradient(federation, 1, message, cloud)
    first = {name: cloud[name] - RATE * g[name] for name in g}
    g = gradient(federation, 1, message, first)
    expected = {n: first[n] - RATE * (g[n] + MU * (first[n] - cloud[n])) for n in g}
    for name, value in update.weights.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def test_only_models_are_sent() -> None:
    federation = federate("clients.count=4", "clients.per_round=4", "algorithm=fedamp", "rounds=2")
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == metrics["cost/upload_bytes"] == 4 * size
        assert "global/accuracy" not in metrics


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    assert_models_agree(engine, ["personalization=fedamp", *METHOD])


def test_an_old_model_of_a_client_is_forgotten() -> None:
    federation = personalized("fedamp")
    for round in (1, 2, 3):
        train(federation, round)
    store: Any = federation.server.parts["personalization"].store
    assert sorted(store) == ["client_0_version_3", "client_1_version_3"]


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=fedamp", "head=prototype", "local.grad_clip=10")
