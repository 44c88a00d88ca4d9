"""PFL-DA: one step of its three weights by a plain loop, what is sent, and who predicts."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, begin_client, equal
from support.plain_mlp import features
from support.small_federations import ONE_STEP, SMALL, copy, personalized, train

from fedexp.errors import InputError

ETA, LAM = 0.1, 0.4
STEP = [*ONE_STEP, f"optimizer.lr={ETA}", f"personalization.lam={LAM}"]
OWN = "personalization.head."


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_two_rounds_by_a_plain_loop(engine: str) -> None:
    """In the second round the private head differs from the received one, so that both pull."""
    federation = personalized("pfl_da", *STEP, f"engine={engine}")
    w = copy(federation.engine.resources.initial)
    ((x, y),) = federation.data.clients[0].batches(1000)
    for round in (1, 2):
        w |= copy(federation.server.weights)
        received = {n: w[f"head.linear.{n}"].clone() for n in ("weight", "bias")}
        own = {n: value.clone().requires_grad_() for n, value in w.items()}
        z = features(own, x)
        logits = F.linear(z, own["head.linear.weight"], own["head.linear.bias"])
        private = F.linear(z.detach(), own[f"{OWN}weight"], own[f"{OWN}bias"])
        away = sum(((own[f"{OWN}{n}"] - value) ** 2).sum() for n, value in received.items())
        loss = F.cross_entropy(logits, y) + F.cross_entropy(private, y) + LAM / 2 * away
        slopes = torch.autograd.grad(loss, list(own.values()))
        w = {n: (v - ETA * g).detach() for (n, v), g in zip(own.items(), slopes, strict=True)}
        train(federation, round)
        trained = federation.store.model(0)
        assert trained.keys() == w.keys()
        for name, value in w.items():
            torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(w[f"{OWN}weight"], received["weight"])


def test_two_rounds_of_several_steps_by_plain_pytorch() -> None:
    """Turns on batches with the default optimizer, and the server's mean of the shared heads."""
    federation = personalized("pfl_da", f"personalization.lam={LAM}")
    initial = copy(federation.engine.resources.initial)
    models = {client: copy(initial) for client in (0, 1)}
    received = {name: initial[f"head.linear.{name}"] for name in ("weight", "bias")}
    sizes = [federation.data.clients[client].num_samples for client in models]
    for round in (1, 2):
        for client, w in models.items():
            w |= {f"head.linear.{name}": value.clone() for name, value in received.items()}
            for value in w.values():
                value.requires_grad_()
            optimizer = torch.optim.SGD(w.values(), 0.02, 0.9, weight_decay=1e-5)
            for x, y in federation.data.clients[client].local_batches(round, 16):
                z = features(w, x)
                logits = F.linear(z, w["head.linear.weight"], w["head.linear.bias"])
                private = F.linear(z.detach(), w[f"{OWN}weight"], w[f"{OWN}bias"])
                away = sum(((w[f"{OWN}{n}"] - v) ** 2).sum() for n, v in received.items())
                loss = F.cross_entropy(logits, y) + F.cross_entropy(private, y) + LAM / 2 * away
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            models[client] = {name: value.detach() for name, value in w.items()}
        for name in received:
            heads = [
                each[f"head.linear.{name}"] * n
                for each, n in zip(models.values(), sizes, strict=True)
            ]
            received[name] = sum(heads) / sum(sizes)
        train(federation, round)
        assert federation.server.weights.keys() == {f"head.linear.{name}" for name in received}
        for name, value in received.items():
            found = federation.server.weights[f"head.linear.{name}"]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)
        for client, w in models.items():
            trained = federation.store.model(client)
            assert trained.keys() == w.keys()
            for name, value in w.items():
                torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)


def test_only_the_shared_head_is_sent() -> None:
    federation = personalized("pfl_da")
    assert federation.server.weights.keys() == {"head.linear.weight", "head.linear.bias"}


def test_the_private_head_predicts() -> None:
    federation = personalized("pfl_da")
    train(federation, 1)
    module = begin_client(federation.engine, 0, federation.server.broadcast(2))
    own: Any = module.personalization
    z = torch.randn(3, 64)
    expected = F.linear(z, own.head.weight, own.head.bias)
    assert torch.equal(own.personalize(z, torch.zeros(3, 10)), expected)


def test_shared_head_and_body_train_as_in_lg_fedavg() -> None:
    one, other = personalized("pfl_da"), personalized("lg_fedavg")
    for federation in (one, other):
        train(federation, 1)
    assert equal(one.server.weights, other.server.weights)


def test_a_head_without_bias_and_both_engines() -> None:
    words = [*SMALL, "personalization=pfl_da", "head=linear_nobias"]
    assert_engine_agrees("vectorized", words, rounds=2)


def test_another_head_is_refused() -> None:
    with pytest.raises(InputError, match="personalization=pfl_da: the private head is linear"):
        personalized("pfl_da", "head=cosine")
