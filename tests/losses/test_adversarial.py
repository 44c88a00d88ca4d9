"""ADCOL: the divergence by hand, one step of a client and of the discriminator by plain PyTorch."""

import math
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate, take_step
from support.small_federations import ONE_STEP, SMALL, copy, train
from torch import nn

from fedexp.core.messages import Tensors
from fedexp.core.randomness import torch_generator
from fedexp.losses.adversarial import away_from_uniform, discriminate, first_discriminator

WHOLE = ["loss.batch_size=1000", "loss.epochs=1", "loss.lr=0.2", "loss.hidden=16", "loss.mu=0.7"]


def discriminator(weights: Tensors) -> nn.Sequential:
    """The network with these weights."""
    layers = [nn.Linear(*weights[f"{n}.weight"].shape[::-1]) for n in range(3)]
    for n, layer in enumerate(layers):
        layer.load_state_dict({k: weights[f"{n}.{k}"] for k in ("weight", "bias")})
    return nn.Sequential(layers[0], nn.ReLU(), layers[1], nn.ReLU(), layers[2])


def test_the_divergence_by_hand() -> None:
    # p = (1/4, 3/4): (1/2) log((1/2) / (1/4)) + (1/2) log((1/2) / (3/4)); it is 0 for p = u.
    logits = torch.tensor([[0.0, math.log(3)], [5.0, 5.0]])
    both, second = torch.tensor([0, 1]), torch.tensor([1])
    found = away_from_uniform(logits, both).tolist()
    assert found == pytest.approx([0.5 * math.log(2) + 0.5 * math.log(2 / 3), 0], abs=1e-6)
    # u = (0, 1): log(1 / (3/4)) and log(1 / (1/2))
    found = away_from_uniform(logits, second).tolist()
    assert found == pytest.approx([math.log(4 / 3), math.log(2)], abs=1e-6)


def test_clients_that_never_train_are_not_asked_for() -> None:
    """Where D tells nothing, the divergence is log(N / m) of the m = 4 of N = 5 that train."""
    size = ["clients.count=5", "clients.per_round=2", "clients.held_out=0.2", "data.subset=200"]
    federation = federate("algorithm=adcol", *size)
    loss: Any = federation.module.loss
    assert loss.with_data.tolist() == [n for n, size in enumerate(federation.data.sizes) if size]
    assert len(loss.with_data) == 4
    found = away_from_uniform(torch.zeros(1, 5), loss.with_data)
    assert found.item() == pytest.approx(math.log(5 / 4), abs=1e-6)


def test_the_discriminator_is_a_network_of_three_layers() -> None:
    weights = first_discriminator((4, 8, 8, 3), torch.Generator().manual_seed(0))
    z = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(discriminate(weights, z), discriminator(weights)(z))
    assert weights["1.weight"].abs().max() <= 8**-0.5


def test_a_step_of_a_client_and_of_the_server_by_plain_loops() -> None:
    words = [*ONE_STEP, "optimizer.lr=0.1", *WHOLE]
    federation = federate(*SMALL, "algorithm=adcol", *words)
    message = federation.server.broadcast(1)
    network = discriminator(copy(message.extras["loss"]))
    module = federation.engine.resources.load_global(message)
    named = dict(module.named_parameters())
    names = [n for n in named if n.startswith(("backbone.", "head."))]
    ((inputs, y),) = federation.data.clients[1].batches(1000)
    for parameter in named.values():
        parameter.requires_grad_()
    z = module.backbone(inputs)
    logs = network(z).log_softmax(dim=1)
    divergence = F.kl_div(logs, torch.full_like(logs, 1 / 4), reduction="batchmean")
    loss = F.cross_entropy(module.head(z), y) + 0.7 * divergence
    slopes = torch.autograd.grad(loss, [named[n] for n in names])
    expected = {n: (named[n] - 0.1 * g).detach() for n, g in zip(names, slopes, strict=True)}
    updates = list(federation.engine.train([0, 1], message))
    trained = federation.store.model(1)
    for name, value in expected.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-5)

    features, clients = [], []
    for client in (0, 1):
        module.load(federation.store.model(client))
        ((inputs, y),) = federation.data.clients[client].batches(1000)
        features.append(module.backbone(inputs).detach())
        clients += [client] * len(y)
    loss = F.cross_entropy(network(torch.cat(features)), torch.tensor(clients))
    slopes = torch.autograd.grad(loss, list(network.parameters()))
    take_step(federation.server, updates)
    found = discriminator(federation.server.broadcast(2).extras["loss"]).parameters()
    for value, before, slope in zip(found, network.parameters(), slopes, strict=True):
        torch.testing.assert_close(value, before - 0.2 * slope, rtol=1e-3, atol=1e-5)


def test_two_rounds_by_plain_pytorch() -> None:
    """Turns of several steps on batches, and passes of the server over batches of features."""
    words = ["loss.batch_size=16", "loss.epochs=2", "loss.lr=0.2", "loss.hidden=16", "loss.mu=0.7"]
    federation = federate(*SMALL, "algorithm=adcol", *words)
    lr, momentum, decay = 0.02, 0.9, 1e-5  # the default optimizer
    network = discriminator(copy(federation.server.broadcast(1).extras["loss"]))
    module: Any = federation.engine.resources.load_global(federation.server.broadcast(1))
    bodies = {client: deepcopy(module.backbone).requires_grad_() for client in (0, 1)}
    heads = {client: deepcopy(module.head).requires_grad_() for client in (0, 1)}
    for round in (1, 2):
        features, clients = [], []
        for client, body in bodies.items():
            data, head = federation.data.clients[client], heads[client]
            weights = [*body.parameters(), *head.parameters()]
            optimizer = torch.optim.SGD(weights, lr, momentum, weight_decay=decay)
            for inputs, y in data.local_batches(round, 16):
                z = body(inputs)
                p = network(z).softmax(dim=1)
                divergence = (torch.tensor(1 / 4).log() - p.log()).mean(dim=1)  # of N = 4 clients
                loss = F.cross_entropy(head(z), y) + 0.7 * divergence.mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            ((inputs, y),) = data.batches(1000)
            features.append(body(inputs).detach())
            clients += [client] * len(y)
        z, labels = torch.cat(features), torch.tensor(clients)
        generator = torch_generator(0, "discriminator_batches", round)
        optimizer = torch.optim.SGD(network.parameters(), 0.2)
        for _ in range(2):
            for batch in torch.randperm(len(z), generator=generator).split(16):
                optimizer.zero_grad()
                F.cross_entropy(network(z[batch]), labels[batch]).backward()
                optimizer.step()
        train(federation, round)
        for client, body in bodies.items():
            trained = federation.store.model(client)
            expected = body.state_dict(prefix="backbone.") | heads[client].state_dict(
                prefix="head."
            )
            assert trained.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(trained[name], value, rtol=1e-4, atol=1e-5)
        found = discriminator(federation.server.broadcast(round + 1).extras["loss"]).parameters()
        for value, expected_value in zip(found, network.parameters(), strict=True):
            torch.testing.assert_close(value, expected_value, rtol=1e-4, atol=1e-5)


def test_the_discriminator_stays_as_it_was_if_its_training_diverges() -> None:
    """Its NaN had made the loss of all clients NaN, so that no later round had an update."""
    federation = federate(*SMALL, "algorithm=adcol", "loss.hidden=16", "loss.lr=1e30")
    for round in (1, 2):
        federation.run_round(round)
        assert not federation.quarantine.clients
    sent = federation.server.broadcast(3).extras["loss"]
    assert all(bool(value.isfinite().all()) for value in sent.values())


def test_clients_send_features_and_no_weights() -> None:
    federation = federate(*SMALL, "algorithm=adcol", "loss.hidden=16")
    metrics = federation.run_round(1).metrics
    sizes = [client.num_samples for client in federation.data.clients]
    weights = 16 * (64 + 1) + 16 * 17 + 4 * 17
    assert metrics["cost/download_bytes"] == 2 * 4 * weights
    cohort = federation.store.clients_with_model
    assert metrics["cost/upload_bytes"] == 4 * 64 * sum(sizes[client] for client in cohort)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    words = [*SMALL, "algorithm=adcol", "personalization=none", "loss.hidden=16"]
    assert_engine_agrees(engine, words, rounds=2)
