"""FedGH: one step of the server's head, what is sent, and what clients start from."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, equal, federate, take_step
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import HEAD, descend, features, logits
from support.small_federations import copy, personalized, train

from fedexp.core.prototypes import class_prototypes
from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError

WHOLE = ["personalization.batch_size=1000", "personalization.lr=0.3"]


def test_the_servers_head_learns_from_the_class_means() -> None:
    federation = personalized("fedgh", *WHOLE)
    assert not federation.server.weights
    message = federation.server.broadcast(1)
    updates = list(federation.engine.train([0, 1], message))
    means, labels = [], []
    for client in (0, 1):
        weights = federation.store.model(client)
        module = federation.engine.resources.load_global(message)
        module.load(weights)
        ((inputs, y),) = federation.data.clients[client].batches(1000)
        prototypes, counts = class_prototypes(module.backbone(inputs).detach(), y, 10)
        means.append(prototypes[counts > 0])
        labels.append((counts > 0).nonzero().flatten())
    initial = federation.engine.resources.initial
    w, b = initial["head.linear.weight"].clone(), initial["head.linear.bias"].clone()
    w.requires_grad_(), b.requires_grad_()
    loss = F.cross_entropy(F.linear(torch.cat(means), w, b), torch.cat(labels))
    slopes = torch.autograd.grad(loss, [w, b])
    take_step(federation.server, updates)
    head = federation.server.broadcast(2).extras["personalization"]
    for name, start, slope in (("weight", w, slopes[0]), ("bias", b, slopes[1])):
        torch.testing.assert_close(head[f"head.linear.{name}"], (start - 0.3 * slope).detach())


def test_a_client_starts_from_its_body_and_the_servers_head() -> None:
    federation = personalized("fedgh", *WHOLE)
    train(federation, 1)
    body = {n: w.clone() for n, w in federation.store.model(0).items() if "backbone" in n}
    message = federation.server.broadcast(2)
    module = begin_client(federation.engine, 0, message)
    head = message.extras["personalization"]
    assert equal({n: module.weights[n] for n in head}, head)
    assert equal({n: module.weights[n] for n in body}, body)


def test_two_rounds_by_plain_pytorch() -> None:
    """Clients train own bodies with the server's head, whose steps are on their class means."""
    words = ["algorithm=fedgh", "personalization.batch_size=4", "personalization.lr=0.3"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    initial = copy(loop.federation.engine.resources.initial)
    models = dict.fromkeys(range(5), initial)
    head = {name: initial[name] for name in HEAD}
    for round, cohort in loop.cohorts(2):
        federation.run_round(round)
        means: list[torch.Tensor] = []
        labels: list[int] = []
        for client in sorted(cohort):
            models[client] = descend(
                models[client] | head,
                loop.batches(round, client),
                lambda w, batch, _: F.cross_entropy(logits(w, features(w, batch[0])), batch[1]),
            )
            assert_same(federation.store.model(client), models[client])
            ((inputs, y),) = loop.federation.data.clients[client].batches(1000)
            z = features(models[client], inputs)
            means += [z[y == c].mean(dim=0) for c in y.unique()]
            labels += y.unique().tolist()
        order = torch.randperm(len(labels), generator=torch_generator(0, "global_head", round))
        assert len(labels) > 4
        for chosen in torch.split(order, 4):
            w = {name: value.requires_grad_() for name, value in head.items()}
            found = logits(w, torch.stack([means[i] for i in chosen]))
            loss = F.cross_entropy(found, torch.tensor([labels[i] for i in chosen]))
            slopes = torch.autograd.grad(loss, list(w.values()))
            head = {n: (v - 0.3 * g).detach() for (n, v), g in zip(w.items(), slopes, strict=True)}
        assert_same(federation.server.broadcast(round + 1).extras["personalization"], head)


def test_the_bytes() -> None:
    federation = personalized("fedgh")
    first, second = (federation.run_round(round).metrics for round in (1, 2))
    for metrics in (first, second):
        assert metrics["cost/upload_bytes"] == 2 * (4 * 10 * 64 + 10)  # two clients
    assert first["cost/download_bytes"] == 0
    assert second["cost/download_bytes"] == 2 * 4 * (64 * 10 + 10)


def test_a_fixed_head_is_refused() -> None:
    with pytest.raises(InputError, match="head=etf: has nothing that the server could train"):
        federate("personalization=fedgh", "head=etf")
