"""FedCP: the shares by hand, one step and the weights that are sent by a plain loop."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.federations import begin_client, federate
from support.plain_mlp import features
from support.small_federations import ONE_STEP, SMALL, copy, moved, personal, personalized, train
from torch import Tensor

from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.personalization.fedcp import PolicyNetwork

ETA = 0.1
STEP = [*ONE_STEP, f"optimizer.lr={ETA}"]
PARTS = ("weight", "bias")


def test_the_shares_by_hand() -> None:
    policy = PolicyNetwork(1)
    linear = policy.layers[0]
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[2.0], [-1.0]]))
        linear.bias.zero_()
    # The outputs (2, -1) of the condition 1 are normalised to (1, -1), and rectified to (1, 0).
    shared, private = policy(torch.ones(1, 1))
    assert shared.item() == pytest.approx(math.e / (math.e + 1), abs=1e-4)
    assert private.item() == pytest.approx(1 / (math.e + 1), abs=1e-4)


def test_the_context_is_the_sum_of_the_private_heads_rows() -> None:
    federation = personalized("fedcp")
    train(federation, 1)
    own = copy(federation.store.model(1))
    module = begin_client(federation.engine, 1, federation.server.broadcast(2))
    rows = own["personalization.head.weight"].sum(dim=0)
    found = module.weights["personalization.context"]
    torch.testing.assert_close(found, rows / rows.square().sum().sqrt())


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_step_by_a_plain_loop(engine: str) -> None:
    federation = personalized("fedcp", "loss=mmd", "loss.lam=0", *STEP, f"engine={engine}")
    message = federation.server.broadcast(1)
    module = federation.engine.resources.load_global(message)
    w = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    ((inputs, y),) = federation.data.clients[0].batches(1000)
    z = features(w, inputs)
    head, private = ("head.linear", "personalization.head")
    # The private head starts as a copy of the shared head.
    torch.testing.assert_close(w[f"{head}.weight"], w[f"{private}.weight"])
    v = w[f"{private}.weight"].detach().sum(dim=0)
    policy = "personalization.policy.layers"
    hidden = F.linear(z * v / v.norm(), w[f"{policy}.0.weight"], w[f"{policy}.0.bias"])
    hidden = F.layer_norm(hidden, (128,), w[f"{policy}.1.weight"], w[f"{policy}.1.bias"]).relu()
    r = (hidden[:, :64] - hidden[:, 64:]).sigmoid()
    logits = F.linear(r * z, w[f"{head}.weight"], w[f"{head}.bias"])
    logits = logits + F.linear((1 - r) * z, w[f"{private}.weight"], w[f"{private}.bias"])
    names = [n for n in w if not n.startswith("head.")]
    slopes = torch.autograd.grad(F.cross_entropy(logits, y), [w[n] for n in names])
    expected = {n: (w[n] - ETA * g).detach() for n, g in zip(names, slopes, strict=True)}
    (update,) = federation.engine.train([0], message)
    trained = federation.store.model(0)
    for name, value in expected.items():
        torch.testing.assert_close(trained[name], value, rtol=1e-3, atol=1e-5)
    for part in ("weight", "bias"):
        kept = w[f"{head}.{part}"].detach()
        assert torch.equal(trained[f"{head}.{part}"], kept)
        sent = (kept + expected[f"{private}.{part}"]) / 2
        torch.testing.assert_close(update.weights[f"{head}.{part}"], sent, rtol=1e-3, atol=1e-5)


def mean_kernel(a: Tensor, b: Tensor) -> Tensor:
    """The mean of the kernel of four variances over all pairs of rows."""
    squares = ((a[:, None] - b[None]) ** 2).sum(dim=2)
    return torch.stack([torch.exp(-squares / (2 * h)) for h in (10, 15, 20, 50)]).sum(0).mean()


def test_a_round_by_plain_pytorch() -> None:
    """Two clients' steps on the whole loss in their second turn, and the average of the round."""
    words = [*SMALL, "algorithm=fedcp", "local.epochs=2", f"optimizer.lr={ETA}"]
    federation = federate(*words, "optimizer.momentum=0", "optimizer.weight_decay=0")
    train(federation, 1)
    received = copy(federation.server.weights)
    head, private, policy = "head.linear", "personalization.head", "personalization.policy.layers"

    def loss(w: Tensors, v: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        z, fixed = features(w, inputs), features(received, inputs)
        hidden = F.linear(z * v / v.norm(), w[f"{policy}.0.weight"], w[f"{policy}.0.bias"])
        hidden = F.layer_norm(hidden, (128,), w[f"{policy}.1.weight"], w[f"{policy}.1.bias"]).relu()
        r, s = hidden.view(len(z), 2, 64).softmax(dim=1).unbind(dim=1)
        logits = F.linear(r * z, received[f"{head}.weight"], received[f"{head}.bias"])
        logits = logits + F.linear(s * z, w[f"{private}.weight"], w[f"{private}.bias"])
        apart = mean_kernel(z, z) + mean_kernel(fixed, fixed) - 2 * mean_kernel(z, fixed)
        return F.cross_entropy(logits, targets) + 5 * apart

    trained, sent, sizes = {}, {}, {}
    for client in (0, 1):
        own = {n: x for n, x in copy(federation.store.model(client)).items() if private in n}
        w = {n: x for n, x in received.items() if not n.startswith(head)} | own
        v = own[f"{private}.weight"].sum(dim=0)
        batches = federation.data.clients[client].local_batches(2, 16)
        for inputs, targets in (batch for _ in range(2) for batch in batches):
            w = {n: x.detach().requires_grad_() for n, x in w.items()}
            slopes = torch.autograd.grad(loss(w, v, inputs, targets), list(w.values()))
            w = {n: x.detach() - ETA * g for (n, x), g in zip(w.items(), slopes, strict=True)}
        trained[client], sizes[client] = w, federation.data.clients[client].num_samples
        mixed = {f"{head}.{p}": received[f"{head}.{p}"] + w[f"{private}.{p}"] for p in PARTS}
        sent[client] = w | {name: value / 2 for name, value in mixed.items()}
    train(federation, 2)
    for client, w in trained.items():
        kept = federation.store.model(client)
        for name, value in w.items():
            torch.testing.assert_close(kept[name], value, rtol=1e-3, atol=1e-5)
    for name, value in federation.server.weights.items():
        mean = sum(sizes[n] * sent[n][name] for n in sent) / sum(sizes.values())
        torch.testing.assert_close(value, mean, rtol=1e-3, atol=1e-5)


def test_the_private_head_stays_at_the_client() -> None:
    federation = personalized("fedcp")
    before = copy(federation.server.weights)
    assert not {n for n in before if "personalization.head" in n or n.endswith("context")}
    train(federation, 1)
    assert moved(before, federation.server.weights) == set(before)
    heads = [federation.store.model(n)["personalization.head.weight"].clone() for n in (0, 1)]
    assert not torch.equal(*heads)
    assert personal(federation, 1)[0].correct.float().mean() > 0


def test_another_head_is_refused() -> None:
    with pytest.raises(InputError, match="head: personalization=fedcp needs a linear classifier"):
        federate("personalization=fedcp", "head=cosine")


def test_what_model_train_leaves_out_of_the_head_stays_in_both_heads() -> None:
    federation = personalized("fedcp", "model.train=[backbone,head.linear.bias]")
    initial = federation.module.head.linear.weight.detach().clone()
    before = copy(federation.server.weights)
    train(federation, 1)
    assert torch.equal(federation.module.personalization.head.weight, initial)
    assert "head.linear.bias" in moved(before, federation.server.weights)
    assert "head.linear.weight" not in federation.server.weights


def test_a_head_that_does_not_train_is_refused() -> None:
    with pytest.raises(InputError, match=r"^personalization=fedcp: .* add head to model\.train"):
        personalized("fedcp", "model.train=[backbone]")
