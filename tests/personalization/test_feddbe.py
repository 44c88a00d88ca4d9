"""FedDBE by hand: the mean of all clients, one step of features and private vector, predictions."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import equal, federate
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.small_federations import ONE_STEP, SMALL, copy, personal, personalized, train

from fedexp.core.messages import Tensors
from fedexp.deployment.predictor import Network
from fedexp.personalization.feddbe import mean_of_means
from fedexp.runtime.federation import Federation

BIAS = "personalization.bias"
ETA = 0.1
STEP = [*ONE_STEP, f"optimizer.lr={ETA}", "personalization.kappa=3"]


def test_the_mean_of_all_samples_by_hand() -> None:
    found = mean_of_means(torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([1, 3]))
    assert found.tolist() == [2.5, 5]


def test_the_first_round_is_fedavgs_and_measures_the_mean_feature() -> None:
    dbe, plain = personalized("feddbe"), federate(*SMALL)
    for federation in (dbe, plain):
        federation.run_round(1)
    shared = {n: w for n, w in dbe.server.weights.items() if n != BIAS}
    assert equal(shared, plain.server.weights)
    clients = dbe.engine.resources.store.clients_with_state
    assert len(clients) == 2
    sums, count = torch.zeros(64), 0
    for client in clients:
        weights = dbe.store.model(client)
        assert not weights[BIAS].any()
        ((inputs, _),) = dbe.data.clients[client].batches(1000)
        sums += features(dbe, weights, inputs).sum(dim=0)
        count += len(inputs)
    (mean,) = dbe.server.broadcast(2).extras["personalization"].values()
    torch.testing.assert_close(mean, sums / count)
    dbe.run_round(2)
    dbe.run_round(3)
    assert torch.equal(dbe.server.broadcast(4).extras["personalization"]["mean"], mean)


def features(federation: Federation, weights: Tensors, inputs: torch.Tensor) -> torch.Tensor:
    """The features by the weights of the default network."""
    names = sorted({n.rsplit(".", 1)[0] for n in weights if n.startswith("backbone.")})
    z = inputs.flatten(1)
    for name in names:
        z = F.linear(z, weights[f"{name}.weight"], weights[f"{name}.bias"]).relu()
    return z


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_a_step_by_hand(engine: str) -> None:
    federation = personalized("feddbe", *STEP, f"engine={engine}")
    train(federation, 1)
    message = federation.server.broadcast(2)
    g = message.extras["personalization"]["mean"]
    w = {n: v.clone().requires_grad_() for n, v in message.weights.items()}
    b = torch.zeros(64, requires_grad=True)
    ((inputs, targets),) = federation.data.clients[0].batches(1000)
    z = features(federation, w, inputs)
    logits = F.linear(z + b, w["head.linear.weight"], w["head.linear.bias"])
    loss = F.cross_entropy(logits, targets) + 3 * ((z.mean(dim=0) - g) ** 2).sum() / 64
    gradients = dict(zip([*w, BIAS], torch.autograd.grad(loss, [*w.values(), b]), strict=True))
    train(federation, 2)
    found = federation.store.model(0)
    for name, start in [*w.items(), (BIAS, b)]:
        expected = start - ETA * gradients[name]
        torch.testing.assert_close(found[name], expected.detach(), rtol=1e-4, atol=1e-6)
    assert found[BIAS].abs().max() > 1e-4


def test_three_rounds_by_plain_pytorch() -> None:
    """A plain round, which measures the mean feature, and two rounds with vectors and the pull."""
    words = ["algorithm=feddbe", "personalization.kappa=3"]
    federation, loop = federate(*SETTING, *words), PlainLoop(*words)
    x, g, vectors, models = dict(loop.start), torch.zeros(8), dict[int, torch.Tensor](), {}
    for round, cohort in loop.cohorts(3):
        total, trained, mean = sum(loop.samples[k] for k in cohort), {}, torch.zeros(8)
        for k in cohort:
            b, y = vectors.get(k, torch.zeros(8)), x
            for inputs, targets in loop.batches(round, k):
                y, b = {n: w.detach().requires_grad_() for n, w in y.items()}, b.detach()
                b.requires_grad_()
                z = features(loop.federation, y, inputs)
                shift, pull = (b, ((z.mean(0) - g) ** 2).mean()) if round > 1 else (0 * b, 0)
                logits = F.linear(z + shift, y["head.linear.weight"], y["head.linear.bias"])
                loss = F.cross_entropy(logits, targets) + 3 * pull
                *slopes, slope = torch.autograd.grad(loss, [*y.values(), b])
                y = {n: w.detach() - LR * s for (n, w), s in zip(y.items(), slopes, strict=True)}
                b = b.detach() - LR * slope
            vectors[k], trained[k] = b, y
            ((inputs, _),) = loop.federation.data.clients[k].batches(1000)
            mean += loop.samples[k] / total * features(loop.federation, y, inputs).mean(dim=0)
        g = mean if round == 1 else g
        x = {n: sum(loop.samples[k] / total * y[n] for k, y in trained.items()) for n in x}
        models |= trained
        federation.run_round(round)
    assert_same(federation.server.weights, x)
    for k, y in models.items():
        assert_same(copy(federation.store.model(k)), y | {BIAS: vectors[k]})
    assert max(b.abs().max() for b in vectors.values()) > 1e-3


def test_a_personal_model_predicts_with_its_vector() -> None:
    federation = personalized("feddbe", *STEP)
    for round in (1, 2):
        train(federation, round)
    before = personal(federation, 2)[0]
    weights = copy(federation.store.model(0))
    test = federation.data.test
    ((inputs, _),) = test.batches(len(test))
    z = features(federation, weights, inputs) + weights[BIAS]
    logits = F.linear(z, weights["head.linear.weight"], weights["head.linear.bias"])
    assert torch.equal(before.correct, logits.argmax(dim=1) == test.labels)


def test_the_training_loss_has_the_private_vector() -> None:
    module: Any = personalized("feddbe").engine.resources.module
    z = torch.rand(3, 64)
    with torch.no_grad():
        module.personalization.bias.fill_(0.5)
        torch.testing.assert_close(module.classify(z), module.head(z + 0.5))


def test_an_exported_personal_model_has_the_private_vector() -> None:
    module: Any = personalized("feddbe").engine.resources.module.eval()
    raw = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        module.personalization.bias.fill_(0.5)
        preparation: Any = SimpleNamespace(prepare=lambda inputs: inputs)
        own, shared = (Network(preparation, module, personal)(raw) for personal in (True, False))
        torch.testing.assert_close(own, torch.softmax(module(raw), dim=1))
        logits = module.head(module.backbone(raw))
    torch.testing.assert_close(shared, torch.softmax(logits, dim=1))


def test_the_vector_is_not_sent_and_the_mean_is_reported_once() -> None:
    dbe, plain = personalized("feddbe"), federate(*SMALL)
    runs = [[each.run_round(r).metrics for r in (1, 2)] for each in (dbe, plain)]
    first, second = zip(*runs, strict=True)
    mean = 2 * 64 * 4  # two clients
    assert first[0]["cost/upload_bytes"] - first[1]["cost/upload_bytes"] == mean
    assert first[0]["cost/download_bytes"] == first[1]["cost/download_bytes"]
    assert second[0]["cost/upload_bytes"] == second[1]["cost/upload_bytes"]
    assert second[0]["cost/download_bytes"] - second[1]["cost/download_bytes"] == mean
