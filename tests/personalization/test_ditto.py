from typing import Any

import pytest
import torch
from federations import federate
from people import (
    DROPOUT,
    ONE_STEP,
    RATE,
    SMALL,
    alike,
    copy,
    equal,
    gradient,
    moved,
    personal,
    personalized,
)

ROUNDS = (1, 2)


@pytest.mark.parametrize("layers", [[], DROPOUT], ids=["mlp", "dropout"])
def test_without_the_spring_it_is_local_training_to_the_bit(layers: list[str]) -> None:
    ditto = federate(*SMALL, "algorithm=ditto", "personalization.lam=0", *layers)
    local = federate(*SMALL, "algorithm=local", *layers)
    for round in ROUNDS:
        for federation in (ditto, local):
            federation.run_round(round)
    stores = ditto.engine.resources.store, local.engine.resources.store
    assert stores[0].clients_with_model == stores[1].clients_with_model
    assert len(stores[0].clients_with_model) >= 2
    for client in stores[0].clients_with_model:
        assert equal(stores[0].model(client), stores[1].model(client))
    assert alike(personal(ditto, 2), personal(local, 2))


def test_the_shared_model_is_as_if_there_were_no_other() -> None:
    ditto, plain = federate(*SMALL, "algorithm=ditto"), federate(*SMALL, "algorithm=fedavg")
    for round in ROUNDS:
        records = [federation.run_round(round).metrics for federation in (ditto, plain)]
        assert records[0]["train/loss"] == records[1]["train/loss"]
        assert records[0]["cost/upload_bytes"] == records[1]["cost/upload_bytes"]
    assert equal(ditto.server.weights, plain.server.weights)


def test_two_steps_by_hand() -> None:
    """v1 = v0 - eta g(v0); v2 = v1 - eta (g(v1) + lam (v1 - w1)), w1 the global model by then."""
    federation = personalized("ditto", *ONE_STEP, "personalization.lam=0.5")
    engine: Any = federation.engine
    first = copy(federation.server.weights)
    g = gradient(engine, 0, federation.server.broadcast(1), first)
    v1 = {name: first[name] - RATE * g[name] for name in g}
    federation.server.aggregate(engine.train([0, 1], federation.server.broadcast(1)))
    assert_close(engine.resources.store.model(0), v1)

    w1, message = copy(federation.server.weights), federation.server.broadcast(2)
    g = gradient(engine, 0, message, v1)
    v2 = {name: v1[name] - RATE * (g[name] + 0.5 * (v1[name] - w1[name])) for name in g}
    assert all((v1[name] - w1[name]).abs().max() > 1e-4 for name in g)  # the spring is stretched
    list(engine.train([0], message))
    assert_close(engine.resources.store.model(0), v2)


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-7, rtol=0)


def test_the_regularizer_is_the_shared_models_alone() -> None:
    free, tied = personalized("ditto"), personalized("ditto", "regularizer=proximal")
    tied.engine.resources.module.regularizer.mu = 10.0  # type: ignore[assignment]
    updates = []
    for federation in (free, tied):
        message = federation.server.broadcast(1)
        updates.append(next(iter(federation.engine.train([0], message))))
    assert moved(updates[0].weights, updates[1].weights)
    models = [federation.engine.resources.store.model(0) for federation in (free, tied)]
    assert equal(*models)


def test_the_model_goes_on_whatever_is_scored_and_wherever_it_waits() -> None:
    ends = []
    for overrides in ([], ["evaluation.personal=off"], ["clients.ram_gib=1e-9"]):
        federation = personalized("ditto", *overrides)
        for round in ROUNDS:
            federation.server.aggregate(
                federation.engine.train([0, 1], federation.server.broadcast(round))
            )
        ends.append(
            [copy(state.separate_model) for _, state in federation.engine.resources.store.states()]
        )
    assert len(ends[0]) == 2
    for other in ends[1:]:
        assert all(equal(*pair) for pair in zip(ends[0], other, strict=True))
