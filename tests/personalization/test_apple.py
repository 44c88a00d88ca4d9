"""APPLE against plain PyTorch with released code's order of operations, and in federations."""

import math
from typing import Any

import pytest
import torch
from support.federations import begin_client, equal, federate
from support.second_model import gradients_of_steps, of_model
from support.small_federations import ONE_STEP, copy, personalized, train

from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.personalization.apple import penalty_factor
from fedexp.testing import check_part

ETA, RATE, MU, BETA = 0.1, 0.04, 0.3, 0.5
STEPS = [f"optimizer.lr={ETA}", f"optimizer.momentum={BETA}", "optimizer.weight_decay=0"]
OPTIONS = [*STEPS, f"personalization.rate={RATE}", f"personalization.mu={MU}", "rounds=4"]
OPTIONS += ["personalization.penalty_rounds=0.5", "personalization.penalty_decay=cosine"]
OPTIONS += ["local.epochs=2", "local.batch_size=16"]


def test_the_penalty_decays_by_hand() -> None:
    cosine = [penalty_factor(round, 4, "cosine") for round in range(1, 7)]
    assert cosine == pytest.approx(
        [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0]
    )
    exponential = [penalty_factor(round, 3, "exponential") for round in range(1, 5)]
    assert exponential == pytest.approx([1, 0.1, 0.01, 0])
    assert penalty_factor(1, 0, "cosine") == 0


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_three_rounds_by_plain_pytorch(engine: str) -> None:
    """p itself is trained here, with its own learning rate and momentum."""
    federation = personalized("apple", *OPTIONS, f"engine={engine}")
    sizes = torch.tensor([float(len(each.labels)) for each in federation.data.clients])
    first = sizes / sizes.sum()
    ps = {client: first.clone() for client in range(4)}
    cores = {client: copy(of_model(federation.server.weights)) for client in range(4)}
    models: dict[int, Any] = {}
    for round, penalty in ((1, MU), (2, MU / 2), (3, 0.0)):
        received = {client: copy(core) for client, core in cores.items()}
        for client in range(4):
            w, p = copy(received[client]), ps[client].clone()
            moved = {name: torch.zeros_like(value) for name, value in w.items()} | {
                "p": torch.zeros(4)
            }
            for gradient in gradients_of_steps(federation, round, 16, 2, client):
                models_now = [w if j == client else received[j] for j in range(4)]
                mixed = {n: sum(p[j] * models_now[j][n] for j in range(4)) for n in w}
                g = gradient(mixed)
                slopes = [sum((g[n] * models_now[j][n]).sum() for n in w) for j in range(4)]
                steps = {n: p[client] * g[n] for n in w}
                steps["p"] = torch.stack(slopes) + penalty * (p - first)
                moved = {n: BETA * moved[n] + steps[n] for n in moved}
                w = {n: w[n] - ETA * moved[n] for n in w}
                p = p - ETA * RATE * moved["p"]
            ps[client], cores[client] = p, w
            models[client] = {
                n: sum(p[j] * (w if j == client else received[j])[n] for j in range(4)) for n in w
            }
        train(federation, round, (0, 1, 2, 3))
    for client, expected in models.items():
        kept = federation.store.model(client)
        assert (ps[client] - first).abs().max() > 1e-3
        found = first + math.sqrt(RATE) * kept["personalization.q"]
        torch.testing.assert_close(found, ps[client], rtol=1e-3, atol=1e-4)
        for name, value in expected.items():
            torch.testing.assert_close(kept[name], value, rtol=1e-3, atol=1e-4)
        sent = federation.server.broadcast(4).to_client(client).weights
        for name, value in cores[client].items():
            torch.testing.assert_close(sent[name], value, rtol=1e-3, atol=1e-4)


def test_a_short_run_has_the_penalty_in_its_first_round() -> None:
    options = [f"personalization.mu={MU}", "personalization.penalty_rounds=0.1", "rounds=5"]
    federation = personalized("apple", *options)
    for round, strength in ((1, MU), (2, 0.0)):
        module = begin_client(federation.engine, 0, federation.server.broadcast(round))
        assert module.personalization.strength.item() == pytest.approx(strength)


def test_the_first_combination_is_the_initial_model() -> None:
    federation = personalized("apple")
    message = federation.server.broadcast(1)
    module = begin_client(federation.engine, 2, message)
    weights = module.personalization.step_weights(dict(module.named_parameters()), 0)
    for name, value in weights.items():
        torch.testing.assert_close(value, message.weights[name])


def test_a_client_without_a_core_model_stands_for_the_global_model() -> None:
    federation = personalized("apple")
    train(federation, 1, (0, 3))
    message, weights = federation.server.broadcast(2), federation.server.weights
    cores = {client: federation.server.broadcast(2).to_client(client).weights for client in (0, 3)}
    assert not equal(cores[0], cores[3])
    for client, others in ((1, [cores[0], weights, cores[3]]), (0, [weights, weights, cores[3]])):
        sent = message.to_client(client)
        expected = weights if client == 1 else cores[0]
        assert equal(sent.weights, expected)
        for name, stack in sent.extras["personalization"].items():
            assert torch.equal(stack, torch.stack([each[name] for each in others]))


def test_clients_that_never_train_have_no_core_model() -> None:
    federation = personalized("apple", "clients.held_out=0.5")
    (held_out, *others) = federation.data.held_out_clients
    trained = sorted({0, 1, 2, 3} - {held_out, *others})
    train(federation, 1, trained)
    message = federation.server.broadcast(2)
    for client, count in ((trained[0], 1), (held_out, 2)):
        stacks = message.to_client(client).extras["personalization"]
        assert {len(stack) for stack in stacks.values()} == {count}
    train(federation, 2, trained)
    for client in trained:
        q = federation.store.model(client)["personalization.q"]
        assert not q[[held_out, *others]].any()
        assert q[trained].all()


def test_a_client_downloads_n_models_and_uploads_one() -> None:
    federation = federate("clients.count=4", "clients.per_round=3", "algorithm=apple", "rounds=2")
    size = 4 * (64 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10)
    for round in (1, 2):
        metrics = federation.run_round(round).metrics
        assert metrics["cost/download_bytes"] == 3 * 4 * size
        assert metrics["cost/upload_bytes"] == 3 * size
        assert "global/accuracy" not in metrics
    assert federation.store.memory(0, "personalization") == {}


def test_with_rate_0_p_stays() -> None:
    federation = personalized("apple", "personalization.rate=0")
    train(federation, 1)
    assert not federation.store.model(0)["personalization.q"].any()


def test_another_number_of_clients_is_refused() -> None:
    with pytest.raises(InputError, match=r"personalization.clients=3: must be clients.count=4"):
        personalized("apple", "personalization.clients=3")


@pytest.mark.parametrize("loss", ["moon", "mmd", "ntd", "cyclic_distillation", "prototype_align"])
def test_losses_that_compare_with_the_core_model_are_refused(loss: str) -> None:
    with pytest.raises(InputError, match=r"^loss: compares with outputs of the client's model"):
        personalized("apple", f"loss={loss}")


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_prototypes_from_the_training_steps_are_those_of_the_combination(engine: str) -> None:
    """With one local step they are of the weights before it; p stays, to be known."""
    options = ["loss=prototype_align", "loss.features=last_epoch", *ONE_STEP, "optimizer.lr=1"]
    federation = personalized("apple", *options, "personalization.rate=0", f"engine={engine}")
    train(federation, 1, (0, 1, 2, 3))
    message = federation.server.broadcast(2)
    cores = [of_model(message.to_client(client).weights) for client in range(4)]
    sizes = torch.tensor([float(len(each.labels)) for each in federation.data.clients])
    p = sizes / sizes.sum()
    stacks = {name: torch.stack([core[name] for core in cores]) for name in cores[0]}
    combination = {name: torch.tensordot(p, stack, dims=1) for name, stack in stacks.items()}
    (update,) = federation.engine.train([2], message)
    ((inputs, labels),) = federation.data.clients[2].batches(1000)
    found, backbone = update.extras["loss"]["prototypes"], federation.module.backbone

    def largest_error(weights: Tensors) -> float:
        own = {name: weights[f"backbone.{name}"] for name, _ in backbone.named_parameters()}
        z = torch.func.functional_call(backbone, own, (inputs,))
        means = {label: z[labels == label].mean(dim=0) for label in labels.unique().tolist()}
        return max((found[label] - mean).abs().max().item() for label, mean in means.items())

    assert largest_error(combination) < 1e-5
    assert largest_error(cores[2]) > 1e-2


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=apple", "head=prototype", "local.grad_clip=10")
