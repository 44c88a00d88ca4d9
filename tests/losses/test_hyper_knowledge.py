"""FedHKD: its loss by hand, and what clients and server send by plain numpy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate, take_step
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import descend, features, logits
from support.small_federations import SMALL
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.forward import Forward
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.losses.hyper_knowledge import HyperKnowledge


def test_the_loss_by_hand() -> None:
    """The head is the identity of two features. Class 0 is known, class 1 is not."""
    loss = HyperKnowledge(0.4, 0.2, 0.5, 0)
    loss.register_buffer("features", torch.tensor([[0.0, math.log(2)], [9.0, 9.0]]))
    loss.register_buffer("predictions", torch.tensor([[0.5, 0.5], [0.0, 0.0]]))
    loss.register_buffer("holds", torch.tensor([1.0, 0.0]))
    z, y = torch.tensor([[3.0, 4.0 + math.log(2)], [1.0, 1.0]]), torch.tensor([0, 1])
    labels = (math.log(math.exp(3) + 2 * math.exp(4)) - 3 + math.log(2)) / 2
    features = (5 + 0) / 2  # (3, 4) has the length 5
    # At T = 1/2 the logits of H_0 are 0 and log 4: (1/5, 4/5) is away from (1/2, 1/2) by (.3, .3).
    predictions = math.sqrt(2 * 0.3**2) / 2
    found = loss(Forward(z, z, y, head=lambda each: each))
    assert found.item() == pytest.approx(labels + 0.2 * features + 0.4 * predictions)


def test_padding_does_not_count() -> None:
    loss = HyperKnowledge(0.4, 0.2, 0.5, 0)
    for name, shape in (("features", (3, 3)), ("predictions", (3, 3)), ("holds", (3,))):
        loss.register_buffer(name, torch.ones(shape))
    draw = torch.Generator().manual_seed(0)
    z, y, real = torch.randn(4, 3, generator=draw), torch.tensor([0, 2, 1, 1]), torch.ones(4)
    real[2:] = 0
    padded = loss(Forward(z, z, y, real, head=lambda each: each))
    plain = loss(Forward(z[:2], z[:2], y[:2], head=lambda each: each))
    torch.testing.assert_close(padded, plain)


def test_at_their_means_features_and_predictions_have_finite_gradients() -> None:
    loss = HyperKnowledge(1, 1, 1, 0)
    for name, value in (("features", torch.zeros(2, 2)), ("holds", torch.ones(2))):
        loss.register_buffer(name, value)
    loss.register_buffer("predictions", torch.full((2, 2), 0.5))
    z = torch.zeros(2, 2, requires_grad=True)
    value = loss(Forward(z, z, torch.tensor([0, 1]), head=lambda each: each + 0 * z.sum()))
    (slopes,) = torch.autograd.grad(value, z)
    assert slopes.isfinite().all()


def test_the_server_averages_what_clients_send() -> None:
    federation = federate(*SMALL, "algorithm=fedhkd", "loss.threshold=0.15")
    message = federation.server.broadcast(1)
    updates = list(federation.engine.train([0, 1, 2], message))
    sums, counts = np.zeros((10, 74)), np.zeros(10)
    for update in updates:
        module = federation.engine.resources.load_global(message).eval()
        module.load(update.weights)
        ((inputs, labels),) = federation.data.clients[update.client].batches(1000)
        with torch.no_grad():
            z, logits = module.outputs(inputs)
            known = torch.cat([z, torch.softmax(logits / 0.5, dim=1)], dim=1).numpy()
        for c in range(10):
            held = (labels == c).numpy()
            if held.sum() > 0.15 * len(labels):
                sums[c] += known[held].sum(axis=0)
                counts[c] += held.sum()
    assert 0 < (counts > 0).sum() < 10
    take_step(federation.server, updates)
    sent = federation.server.broadcast(2).extras["loss"]
    assert sent["holds"].tolist() == (counts > 0).tolist()
    means = sums / np.maximum(counts, 1)[:, None]
    assert np.allclose(sent["features"].numpy(), means[:, :64], atol=1e-5)
    assert np.allclose(sent["predictions"].numpy(), means[:, 64:], atol=1e-5)


def test_three_rounds_by_plain_pytorch() -> None:
    """The steps of all clients, with what the latest clients of each class sent of it."""
    words = ["algorithm=fedhkd", "loss.threshold=0.1", "loss.lam=2", "loss.gamma=0.5"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    weights = loop.start
    known: dict[int, Tensor] = {}  # class -> its mean feature, then its mean prediction

    def loss(w: Tensors, batch: Batch, _: int) -> Tensor:
        z = features(w, batch[0])
        total = F.cross_entropy(logits(w, z), batch[1])
        for c, mean in known.items():
            predicted = torch.softmax(logits(w, mean[:8]) / 0.5, dim=0)
            total = total + 2 / 10 * (predicted - mean[8:]).norm()
            total = total + 0.5 * (z[batch[1] == c] - mean[:8]).norm(dim=1).sum() / len(z)
        return total

    kept = 0
    for round, cohort in loop.cohorts(3):
        federation.run_round(round)
        models = {k: descend(weights, loop.batches(round, k), loss) for k in cohort}
        weights = loop.mean(models, cohort, weights)
        assert_same(federation.server.weights, weights)
        rows: dict[int, list[Tensor]] = {}
        for client, model in models.items():
            ((inputs, y),) = loop.federation.data.clients[client].batches(1000)
            z = features(model, inputs)
            both = torch.cat([z, torch.softmax(logits(model, z) / 0.5, dim=1)], dim=1)
            for c in y.unique().tolist():
                if (y == c).sum() > 0.1 * len(y):
                    rows.setdefault(c, []).extend(both[y == c])
        kept += len(known.keys() - rows.keys())
        known |= {c: torch.stack(each).mean(dim=0) for c, each in rows.items()}
        assert 0 < len(rows) < 10
    assert kept


def test_the_first_round_is_fedavgs() -> None:
    method, plain = federate(*SMALL, "algorithm=fedhkd"), federate(*SMALL)
    for federation in (method, plain):
        federation.run_round(1)
    for name, value in plain.server.weights.items():
        assert torch.equal(value, method.server.weights[name])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=fedhkd", "loss.threshold=0.1"], rounds=2)


def test_a_head_with_running_statistics_is_refused() -> None:
    with pytest.raises(InputError, match="loss=hyper_knowledge: mean features would change"):
        federate("head=etf", "head.feature_norm=batchnorm", "loss=hyper_knowledge")
