"""FedPAC against plain PyTorch over two rounds, and in federations."""

from typing import Any

import pytest
import torch
from support.small_federations import (
    ONE_STEP,
    RATE,
    assert_models_agree,
    copy,
    moved,
    personalized,
    train,
)
from torch import Tensor, nn

from fedexp.core.messages import Tensors
from fedexp.personalization.fedpac import collaboration_weights
from fedexp.runtime.federation import Federation
from fedexp.testing import check_part

HEAD = {"head.linear.weight", "head.linear.bias"}
LAM = 0.7
ALIGNED = ["algorithm=fedpac", f"loss.lam={LAM}"]


def samples(federation: Federation, client: int) -> tuple[Tensor, Tensor]:
    (batch,) = federation.data.clients[client].batches(1000)
    return batch


def features(federation: Federation, weights: Tensors, client: int) -> Tensor:
    body: nn.Module = federation.module.backbone
    own = {n.removeprefix("backbone."): w for n, w in weights.items() if n.startswith("backbone.")}
    return torch.func.functional_call(body, own, samples(federation, client)[0])


def descend(
    federation: Federation, weights: Tensors, client: int, part: str, centroids: Tensor | None
) -> Tensors:
    """One gradient step of the weights that begin with ``part``."""
    leaves = {n: w.clone().requires_grad_(n.startswith(part)) for n, w in weights.items()}
    z, y = features(federation, leaves, client), samples(federation, client)[1]
    logits = z @ leaves["head.linear.weight"].T + leaves["head.linear.bias"]
    loss = nn.functional.cross_entropy(logits, y)
    if centroids is not None:
        loss = loss + LAM * nn.functional.mse_loss(z, centroids[y])
    loss.backward()  # type: ignore[no-untyped-call]
    return {n: w.detach() - RATE * w.grad if w.grad is not None else w for n, w in leaves.items()}


def class_means(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Means [10, d], zero for absent classes, and counts [10]."""
    means, counts = torch.zeros(10, z.shape[1]), torch.zeros(10)
    for c in y.unique():
        means[c], counts[c] = z[y == c].mean(dim=0), (y == c).sum()
    return means, counts


def statistics(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """h [10, d] and V: the released code's loop over classes."""
    means, counts = class_means(z, y)
    h, v = torch.zeros_like(means), torch.tensor(0.0)
    for c in y.unique():
        share, own = counts[c] / len(y), z[y == c]
        h[c] = share * means[c]
        v = v + share * torch.trace(own.T @ own / len(own)) - share**2 * means[c].square().sum()
    return h, v / len(y)


def test_two_rounds_by_plain_pytorch() -> None:
    federation = personalized("fedpac", *ALIGNED, *ONE_STEP, "data.augment=none")
    start, clients = copy(federation.module.weights), (0, 1, 2)
    models, known = {}, {}
    for client in clients:
        y = samples(federation, client)[1]
        known[client] = statistics(features(federation, start, client).detach(), y)
        after = descend(federation, start, client, "head.", None)
        models[client] = descend(federation, after, client, "backbone.", None)
    sizes = torch.tensor([len(samples(federation, c)[1]) for c in clients])
    body = {
        name: sum(n * models[c][name] for n, c in zip(sizes, clients, strict=True)) / sizes.sum()
        for name in start.keys() - HEAD
    }
    means = [
        class_means(features(federation, models[c], c).detach(), samples(federation, c)[1])
        for c in clients
    ]
    counts = torch.stack([count for _, count in means])
    centroids = torch.einsum("kc,kcd->cd", counts, torch.stack([mean for mean, _ in means]))
    centroids /= counts.sum(dim=0).clamp(min=1).unsqueeze(1)
    h, v = (torch.stack([known[c][i] for c in clients]) for i in (0, 1))
    alpha = torch.as_tensor(collaboration_weights(h, v)).float()
    assert ((alpha > 0.01) & (alpha < 0.99)).any()  # heads are in fact combined
    heads = {n: torch.stack([models[c][n] for c in clients]) for n in HEAD}

    train(federation, 1, clients)
    message = federation.server.broadcast(2)
    for place, client in enumerate(clients):
        own: Any = body | {n: torch.tensordot(alpha[place], heads[n], dims=1) for n in HEAD}
        sent = message.to_client(client).weights
        assert sent.keys() == own.keys()
        assert_close(sent, own)
        after = descend(federation, own, client, "head.", centroids)
        expected = descend(federation, after, client, "backbone.", centroids)
        (update,) = federation.engine.train([client], message)
        assert_close(update.weights, expected)
        assert_close({n: update.extras["personalization"][n] for n in HEAD}, expected)


def assert_close(found: Tensors, expected: Tensors) -> None:
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-5)


def test_a_client_goes_on_with_its_combined_head() -> None:
    federation = personalized("fedpac", "algorithm=fedpac")
    train(federation, 1, (0, 1, 2))
    message = federation.server.broadcast(2)
    sent = message.to_client(0).weights
    trained = {name: federation.store.model(0)[name] for name in HEAD}
    assert moved(trained, sent) == HEAD
    with federation.store.open(0) as state:
        begun = federation.engine.begin(0, message, state).weights
    assert not moved({n: w for n, w in sent.items() if n in begun}, begun)


def test_a_client_that_has_not_trained_gets_no_head() -> None:
    federation = personalized("fedpac")
    train(federation, 1, (0, 1))
    message = federation.server.broadcast(2)
    assert not HEAD & message.to_client(3).weights.keys()
    assert message.to_client(0).weights.keys() > HEAD


def test_one_client_keeps_its_own_head() -> None:
    federation = personalized("fedpac")
    train(federation, 1, (2,))
    sent = federation.server.broadcast(2).to_client(2).weights
    assert not moved({name: federation.store.model(2)[name] for name in HEAD}, sent)


def test_all_that_is_sent_is_counted() -> None:
    """Up: body, head, h, V, class means and counts. Down: body, centroids, later the head."""
    federation = personalized("fedpac", "algorithm=fedpac", "clients.per_round=4")
    body, head = 4 * (64 * 128 + 128 + 128 * 64 + 64), 4 * (64 * 10 + 10)
    rows, counts, holds = 4 * 10 * 64, 8 * 10, 10
    first, second = (federation.run_round(round).metrics for round in (1, 2))
    assert first["cost/upload_bytes"] == 4 * (body + head + rows + 4 + rows + counts)
    assert first["cost/download_bytes"] == 4 * body
    assert second["cost/upload_bytes"] == first["cost/upload_bytes"]
    assert second["cost/download_bytes"] == 4 * (body + head + rows + holds)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_every_engine_gives_the_same_models(engine: str) -> None:
    assert_models_agree(engine, ALIGNED)


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("personalization=fedpac", "head=prototype", "local.grad_clip=10")
