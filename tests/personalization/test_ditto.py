from typing import Any

import pytest
import torch
from support.federations import equal, federate, take_step
from support.small_federations import (
    DROPOUT,
    ONE_STEP,
    RATE,
    SMALL,
    alike,
    copy,
    gradient,
    moved,
    personal,
    personalized,
    train,
)

ROUNDS = (1, 2)


@pytest.mark.parametrize("layers", [[], DROPOUT], ids=["mlp", "dropout"])
def test_without_the_proximal_term_it_is_local_training_to_the_bit(layers: list[str]) -> None:
    ditto = federate(*SMALL, "algorithm=ditto", "personalization.lam=0", *layers)
    local = federate(*SMALL, "algorithm=local", *layers)
    for round in ROUNDS:
        for federation in (ditto, local):
            federation.run_round(round)
    stores = ditto.store, local.store
    assert stores[0].clients_with_model == stores[1].clients_with_model
    assert len(stores[0].clients_with_model) >= 2
    for client in stores[0].clients_with_model:
        assert equal(stores[0].model(client), stores[1].model(client))
    assert alike(personal(ditto, 2), personal(local, 2))


def test_the_shared_model_is_that_of_fedavg() -> None:
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
    g = gradient(federation, 0, federation.server.broadcast(1), first)
    v1 = {name: first[name] - RATE * g[name] for name in g}
    take_step(federation.server, engine.train([0, 1], federation.server.broadcast(1)))
    assert_close(federation.store.model(0), v1)

    w1, message = copy(federation.server.weights), federation.server.broadcast(2)
    g = gradient(federation, 0, message, v1)
    v2 = {name: v1[name] - RATE * (g[name] + 0.5 * (v1[name] - w1[name])) for name in g}
    assert all((v1[name] - w1[name]).abs().max() > 1e-4 for name in g)  # the proximal term matters
    list(engine.train([0], message))
    assert_close(federation.store.model(0), v2)


def test_the_local_anchor_by_hand() -> None:
    """u = w - eta g(w): in round 1, where v0 = w, v1 = v0 - eta (g + lam eta g)."""
    federation = personalized(
        "ditto", *ONE_STEP, "personalization.lam=5", "personalization.anchor=local"
    )
    v0 = copy(federation.server.weights)
    g = gradient(federation, 0, federation.server.broadcast(1), v0)
    train(federation, 1)
    v1 = {name: v0[name] - RATE * (g[name] + 5 * RATE * g[name]) for name in g}
    assert_close(federation.store.model(0), v1)

    w1 = copy(federation.server.weights)
    message = federation.server.broadcast(2)
    g_shared, g_own = (gradient(federation, 0, message, weights) for weights in (w1, v1))
    u = {name: w1[name] - RATE * g_shared[name] for name in g}
    v2 = {n: v1[n] - RATE * (g_own[n] + 5 * (v1[n] - u[n])) for n in g}
    train(federation, 2)
    assert_close(federation.store.model(0), v2)
    assert federation.store.memory(0, "personalization") == {}


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_the_pull_may_be_left_out_of_clipping(engine: str) -> None:
    """Three steps v <- v - eta (clip(g) + lam (v - u)) by hand, u = v_0 in the first round."""
    clip, lam = 0.3, 8.0
    federation = personalized(
        *("ditto", *ONE_STEP, "local.epochs=3", f"local.grad_clip={clip}", f"engine={engine}"),
        *(f"personalization.lam={lam}", "personalization.clip_pull=false"),
    )
    message = federation.server.broadcast(1)
    u = copy(federation.server.weights)
    v = copy(u)
    for _ in range(3):
        g = gradient(federation, 0, message, v)
        norm = torch.cat([each.flatten() for each in g.values()]).norm()
        assert norm > 1.5 * clip
        v = {n: v[n] - RATE * (clip / (norm + 1e-6) * g[n] + lam * (v[n] - u[n])) for n in v}
    train(federation, 1)
    assert_close(federation.store.model(0), v)
    assert max((RATE * lam * (v[n] - u[n])).abs().max() for n in v) > 1e-4  # the pull matters


def test_without_clipping_it_does_not_matter_where_the_pull_is_added() -> None:
    """But for rounding; also with an optimizer that clients keep, in a stack."""
    options = ("ditto", "personalization.lam=2", "local.keep_optimizer=true", "engine=vectorized")
    models = []
    for clip_pull in ("true", "false"):
        federation = personalized(*options, f"personalization.clip_pull={clip_pull}")
        for round in ROUNDS:
            train(federation, round)
        models.append(copy(federation.store.model(1)))
    assert_close(models[0], models[1])


def test_plain_sgd_has_neither_momentum_nor_weight_decay() -> None:
    """The configured optimizer still trains the shared model, on which v does not depend here."""
    batches = ["local.batch_size=8", "optimizer.weight_decay=0.1", "personalization.lam=0"]
    plain = personalized("ditto", *batches, "personalization.optimizer=plain_sgd")
    configured = personalized("ditto", *batches)
    bare = personalized("ditto", *batches, "optimizer.momentum=0", "optimizer.weight_decay=0")
    for federation in (plain, configured, bare):
        train(federation, 1)
    assert equal(plain.server.weights, configured.server.weights)
    models = [each.store.model(0) for each in (plain, configured, bare)]
    assert equal(models[0], models[2])
    assert moved(models[0], models[1])


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=2e-7, rtol=0)


def test_the_regularizer_acts_on_the_shared_model_only() -> None:
    free, tied = personalized("ditto"), personalized("ditto", "regularizer=proximal")
    tied.module.regularizer.mu = 10.0  # type: ignore[assignment]
    updates = []
    for federation in (free, tied):
        message = federation.server.broadcast(1)
        updates.append(next(iter(federation.engine.train([0], message))))
    assert moved(updates[0].weights, updates[1].weights)
    models = [federation.store.model(0) for federation in (free, tied)]
    assert equal(*models)


def test_the_personal_model_does_not_depend_on_evaluation_or_storage() -> None:
    ends = []
    unscored = ["measure.personal=null", "objective=train/loss"]
    for overrides in ([], unscored, ["clients.ram_gib=1e-9"]):
        federation = personalized("ditto", *overrides)
        for round in ROUNDS:
            take_step(
                federation.server,
                federation.engine.train([0, 1], federation.server.broadcast(round)),
            )
        ends.append([copy(state.separate_model) for _, state in federation.store.states()])
    assert len(ends[0]) == 2
    for other in ends[1:]:
        assert all(equal(*pair) for pair in zip(ends[0], other, strict=True))
