"""FedAH: its mixture, its head and its body by a plain loop, and what it refuses."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client
from support.plain_mlp import HEAD, features, logits
from support.small_federations import ONE_STEP, SMALL, copy, moved, personalized, train

from fedexp.core.randomness import torch_generator
from fedexp.errors import InputError

ETA, RATE = 0.1, 5.0
STEP = [*ONE_STEP, f"optimizer.lr={ETA}", f"personalization.rate={RATE}"]


def loss(w: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits(w, features(w, x)), y)


def stepped(w: dict[str, torch.Tensor], names: list[str], *batch: torch.Tensor) -> None:
    """Take a gradient step with the weights of these names."""
    free = {name: w[name].detach().requires_grad_() for name in names}
    slopes = torch.autograd.grad(loss(w | free, *batch), list(free.values()))
    w |= {name: (free[name] - ETA * g).detach() for name, g in zip(names, slopes, strict=True)}


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_two_rounds_by_a_plain_loop(engine: str) -> None:
    federation = personalized("fedah", *STEP, f"engine={engine}")
    (batch,) = federation.data.clients[0].batches(1000)
    local: dict[str, torch.Tensor] = {}
    share = {name: torch.ones_like(federation.server.weights[name]) for name in HEAD}
    for round in (1, 2):
        w = copy(federation.server.weights)
        apart = {name: w[name] - local[name] for name in HEAD} if local else {}
        if local:
            own = {name: value.requires_grad_() for name, value in share.items()}
            mixed = {name: local[name] + own[name] * apart[name] for name in HEAD}
            slopes = torch.autograd.grad(loss(w | mixed, *batch), list(own.values()))
            share = {
                name: (own[name] - RATE * g).detach().clamp(0, 1)
                for name, g in zip(HEAD, slopes, strict=True)
            }
            assert 0 < share[HEAD[0]].mean() < 1
            w |= {name: local[name] + share[name] * apart[name] for name in HEAD}
        stepped(w, list(HEAD), *batch)
        stepped(w, [name for name in w if name not in HEAD], *batch)
        train(federation, round)
        found = federation.store.model(0)
        for name, value in w.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-5)
        local = {name: found[name].clone() for name in HEAD}


def test_three_rounds_of_several_steps_by_plain_pytorch() -> None:
    """The mixture, the head and then the body take steps on batches; the server averages all."""
    words = ["optimizer.momentum=0", "optimizer.weight_decay=0", f"optimizer.lr={ETA}"]
    words += [f"personalization.rate={RATE}", "personalization.head_epochs=2"]
    federation = personalized("fedah", *words)
    server = copy(federation.server.weights)
    local: dict[int, dict[str, torch.Tensor]] = {}
    shares = {n: {name: torch.ones_like(server[name]) for name in HEAD} for n in (0, 1)}
    for round in (1, 2, 3):
        trained = {}
        for client in (0, 1):
            data, w = federation.data.clients[client], copy(server)
            if client in local:
                x, y = next(iter(data.batches(1000)))
                draws = torch_generator(0, "aggregation weights", round, client)
                order = torch.randperm(len(y), generator=draws)
                head, share = local[client], shares[client]
                for part in order.tensor_split(-(-len(y) // 16)):
                    own = {name: value.requires_grad_() for name, value in share.items()}
                    mixed = {n: head[n] + own[n] * (server[n] - head[n]) for n in HEAD}
                    slopes = torch.autograd.grad(loss(w | mixed, x[part], y[part]), [*own.values()])
                    share = {
                        name: (own[name] - RATE * g).detach().clamp(0, 1)
                        for name, g in zip(HEAD, slopes, strict=True)
                    }
                assert 0 < share[HEAD[0]].mean() < 1
                shares[client] = share
                w |= {n: head[n] + share[n] * (server[n] - head[n]) for n in HEAD}
            batches = data.local_batches(round, 16)
            for batch in [*batches, *batches]:
                stepped(w, list(HEAD), *batch)
            for batch in batches:
                stepped(w, [name for name in w if name not in HEAD], *batch)
            trained[client] = w
        local = {client: {name: w[name] for name in HEAD} for client, w in trained.items()}
        sizes = [federation.data.clients[client].num_samples for client in trained]
        weighted = list(zip(trained.values(), sizes, strict=True))
        server = {n: sum(w[n] * size for w, size in weighted) / sum(sizes) for n in server}
        train(federation, round)
        for client, w in trained.items():
            found = federation.store.model(client)
            for name, value in w.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-5)
        for name, value in server.items():
            torch.testing.assert_close(federation.server.weights[name], value, rtol=1e-4, atol=2e-5)


def test_the_body_starts_from_the_global_model() -> None:
    federation = personalized("fedah")
    train(federation, 1)
    message = federation.server.broadcast(2)
    begun = copy(begin_client(federation.engine, 0, message).weights)
    assert moved(message.weights, begun) == set(HEAD)


def test_nothing_but_the_weights_is_sent() -> None:
    records = [personalized(name).run_round(1).metrics for name in ("fedah", "none")]
    for key in ("cost/upload_bytes", "cost/download_bytes"):
        assert records[0][key] == records[1][key]


def test_a_head_without_anything_to_mix_is_refused() -> None:
    with pytest.raises(InputError, match="head=etf: trains nothing that could be mixed"):
        personalized("fedah", "head=etf", *SMALL)
