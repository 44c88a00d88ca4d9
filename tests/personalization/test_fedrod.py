from typing import Any

import pytest
import torch
import torch.nn.functional as F
from federations import federate
from people import SMALL, personalized

from fedexp.core.forward import Forward
from fedexp.personalization.fedrod import FedROD

PRIVATE = {"personalization.head.weight", "personalization.head.bias"}


def tiny() -> FedROD:
    """Two features, two classes; h(z) = (z_0, 2 z_1 + 1)."""
    part = FedROD()
    part.create(2, 2)
    with torch.no_grad():
        part.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        part.head.bias.copy_(torch.tensor([0.0, 1.0]))
    return part


def test_personal_logits_are_the_sum() -> None:
    z, logits = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.5, -0.5]])
    assert tiny().personalize(z, logits).tolist() == [[3.5, 8.5]]


def test_it_starts_where_both_models_agree() -> None:
    part = FedROD()
    part.create(3, 4)
    logits = torch.randn(2, 4)
    assert torch.equal(part.personalize(torch.randn(2, 3), logits), logits)


def test_the_private_loss_by_hand_and_whom_its_gradient_reaches() -> None:
    part = tiny()
    z = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    logits = torch.tensor([[0.0, 0.0], [1.0, 0.0]], requires_grad=True)
    targets = torch.tensor([1, 0])
    # Sums (3, 9) and (1, 1): losses log(1 + e^-6) and log 2.
    loss = part.term(Forward(z, logits, targets))
    assert loss.item() == pytest.approx((0.0024757 + 0.6931472) / 2, rel=1e-5)
    loss.backward()
    assert z.grad is None
    assert logits.grad is None
    # (softmax - onehot) / 2, summed over samples: for class 0 (e^-6/(1+e^-6) - 1/2) / 2.
    bias = part.head.bias.grad
    assert bias is not None
    assert bias.tolist() == pytest.approx([-0.2487637, 0.2487637], rel=1e-5)
    real = Forward(z, logits, targets, real=torch.tensor([1.0, 0.0]))
    assert part.term(real).item() == pytest.approx(0.0024757, rel=1e-4)


def test_the_generic_model_never_sees_the_private_head() -> None:
    """Two rounds of FedROD leave exactly what two rounds without private heads leave."""
    rod = federate(*SMALL, "algorithm=fedrod")
    plain = federate(*SMALL, "algorithm=fedavg", "loss=balanced_softmax")
    for round in (1, 2):
        for federation in (rod, plain):
            federation.run_round(round)
    assert rod.server.weights.keys() == plain.server.weights.keys()
    for name, weight in plain.server.weights.items():
        assert torch.equal(rod.server.weights[name], weight), name


def test_each_client_has_its_own_private_head() -> None:
    federation = personalized("fedrod")
    message = federation.server.broadcast(1)
    assert not PRIVATE & message.weights.keys()
    list(federation.engine.train([0, 1], message))
    one, other = (federation.engine.resources.store.private(client) for client in (0, 1))
    assert one is not None
    assert other is not None
    assert one.keys() == other.keys() == PRIVATE
    assert all(one[name].any() and not torch.equal(one[name], other[name]) for name in PRIVATE)


def test_the_personal_model_adds_its_head_and_the_global_one_does_not() -> None:
    federation = personalized("fedrod")
    engine: Any = federation.engine
    list(engine.train([0, 1], federation.server.broadcast(1)))
    labels = engine.resources.data.test.labels
    for client, found in engine.evaluate_personal(federation.server.broadcast(1)):
        module = engine.resources.module
        module.load(engine.resources.store.model(client))
        inputs = torch.cat([x for x, _ in engine.resources.data.test.batches(1000)])
        with torch.no_grad():
            z = module.backbone(inputs)
            logits = module.head(z)
            private = engine.resources.store.private(client)
            weight = private["personalization.head.weight"]
            bias = private["personalization.head.bias"]
            logits = logits + z @ weight.T + bias
        assert found.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
        assert (found.correct == (logits.argmax(1) == labels)).float().mean() > 0.999
    with torch.no_grad():
        module = engine.resources.load_global(federation.server.broadcast(1)).eval()
        generic = module.head(module.backbone(inputs))
    expected = F.cross_entropy(generic, labels).item()
    assert engine.evaluate(federation.server.broadcast(1)).loss == pytest.approx(expected, rel=1e-5)
