"""FedBABU and plain fine-tuning: personal models that are tuned before they are scored."""

from typing import Any

import pytest
import torch
from support.federations import equal, federate, take_step
from support.small_federations import (
    ONE_STEP,
    RATE,
    SMALL,
    alike,
    copy,
    gradient,
    personal,
    personalized,
    train,
)

from fedexp.core.messages import Message
from fedexp.measures.scoring.scoring import Scoring

HEAD = {"head.linear.weight", "head.linear.bias"}


def test_fine_tuning_is_one_more_round_of_training_without_the_server() -> None:
    """What FedAvg's client trains in the next round, with its learning rate and its batches."""
    decay = ["optimizer.round_decay=0.5", "local.batch_size=8"]
    tuned, plain = personalized("finetune", *decay), federate(*SMALL, *decay)
    for federation in (tuned, plain):
        message = federation.server.broadcast(1)
        take_step(federation.server, federation.engine.train([0, 1], message))
    assert equal(tuned.server.weights, plain.server.weights)
    message = plain.server.broadcast(2)
    list(plain.engine.train([0, 1], message))
    assert alike(personal(tuned, 1), personal(plain, 1))


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_fedbabu_tunes_at_the_decayed_rate_of_the_round_after_the_last(engine: str) -> None:
    """FedNH's study: after T rounds at lr, lr d, ..., lr d^(T-1) one step at lr d^T, by hand."""
    decay = 0.1
    options = ["personalization.tuning_epochs=1", "personalization.tune_from=local", "rounds=2"]
    options += [f"optimizer.round_decay={decay}", "optimizer.lr=2", f"engine={engine}"]
    federation = personalized("fedbabu", *ONE_STEP, *options)
    for round in (1, 2):
        train(federation, round)
    message = federation.server.broadcast(2)
    start = copy(federation.store.model(1))
    g = gradient(federation, 1, message, start)
    for client, _ in Scoring(federation.engine).score_personal(message):
        if client == 1:
            found = copy(federation.module.weights)
    for name in g:
        torch.testing.assert_close(found[name], start[name] - 2 * decay**2 * g[name])


def test_it_trains_for_as_long_as_the_clients_or_as_asked() -> None:
    def epochs(*overrides: str) -> int:
        engine: Any = personalized("finetune", *overrides).engine
        (phase,) = engine.resources.personalization.tuning()
        return int(phase.epochs)

    assert epochs() == 1
    assert epochs("local.epochs=3") == 3
    assert epochs("personalization.epochs=10") == 10


def test_tuning_has_no_regularizer() -> None:
    free, tied = personalized("finetune"), personalized("finetune", "regularizer=proximal")
    tied.module.regularizer.mu = 10.0  # type: ignore[assignment]
    scores = []
    for federation in (free, tied):
        message = Message(1, copy(free.server.weights))
        list(federation.engine.train([0], message))
        scores.append(dict(Scoring(federation.engine).score_personal(message)))
    assert alike(*scores)


def test_the_head_of_fedbabu_stays_as_initialised_at_all_clients() -> None:
    federation = personalized("fedbabu")
    initial = copy(federation.engine.resources.initial)
    assert federation.server.weights.keys() == initial.keys() - HEAD
    for round in (1, 2):
        federation.run_round(round)
    final = federation.global_model(2).weights
    assert all(torch.equal(final[name], initial[name]) for name in HEAD)
    assert all(not torch.equal(final[name], initial[name]) for name in initial.keys() - HEAD)
    store = federation.store
    assert store.clients_with_model
    for client in store.clients_with_model:
        assert all(torch.equal(store.model(client)[name], initial[name]) for name in HEAD)


@pytest.mark.parametrize("personalization", ["fedbabu", "finetune"])
def test_tuning_starts_from_the_final_global_model(personalization: str) -> None:
    """One plain step, by hand, from the weights that the server has at the end."""
    epochs = "tuning_epochs" if personalization == "fedbabu" else "epochs"
    federation = personalized(personalization, *ONE_STEP, f"personalization.{epochs}=1")
    engine: Any = federation.engine
    for round in (1, 2):
        message = federation.server.broadcast(round)
        take_step(federation.server, engine.train([0, 1], message))
    message = federation.server.broadcast(2)
    final = engine.resources.initial | federation.server.weights
    assert not equal(final, federation.store.model(0))
    expected = gradient(federation, 0, message, final)
    tuned = {
        client: copy(federation.module.weights)
        for client, _ in Scoring(engine).score_personal(message)
    }
    for name, g in expected.items():
        assert g.any(), name
        torch.testing.assert_close(tuned[0][name], final[name] - RATE * g)


def test_fedbabu_may_tune_the_clients_latest_local_model() -> None:
    """One plain step, by hand, from each client's own model; the stored one stays as it was."""
    options = ["personalization.tuning_epochs=1", "personalization.tune_from=local"]
    federation = personalized("fedbabu", *ONE_STEP, *options)
    engine: Any = federation.engine
    train(federation, 1)
    train(federation, 2, [1, 2])
    message = federation.server.broadcast(2)
    locals_ = {client: copy(federation.store.model(client)) for client in (0, 1, 2)}
    expected = {c: gradient(federation, c, message, model) for c, model in locals_.items()}
    found = {
        client: copy(federation.module.weights)
        for client, _ in Scoring(engine).score_personal(message)
    }
    assert found.keys() == locals_.keys()
    for client, start in locals_.items():
        assert equal(federation.store.model(client), start)
        for name, g in expected[client].items():
            torch.testing.assert_close(found[client][name], start[name] - RATE * g)


def test_a_tuned_model_is_adapted_to_its_client() -> None:
    """Classes that a client of FedGELA lacks are excluded from its tuned model too."""
    three = ["partition=shards", "partition.classes_per_client=3"]
    federation = personalized(
        "finetune", "head=etf", "head.missing=exclude", "local.grad_clip=20", *three
    )
    engine: Any = federation.engine
    message = federation.server.broadcast(1)
    take_step(federation.server, engine.train([0, 1], message))
    scored = []
    for client, _ in Scoring(engine).score_personal(federation.server.broadcast(1)):
        scored.append(client)
        held = federation.data.clients[client].class_counts > 0
        assert torch.equal(federation.module.weights["head.included"], held)
    assert scored == [0, 1]
