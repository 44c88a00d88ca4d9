from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate
from support.small_federations import ONE_STEP, RATE, SMALL, copy, moved, personalized, train
from torch import nn

from fedexp.core.forward import Forward
from fedexp.core.sockets import Network
from fedexp.errors import InputError
from fedexp.heads.linear import Linear
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.measures.scoring.scoring import Scoring
from fedexp.personalization.fedrod import FedROD
from fedexp.state.client_state import ClientState

PRIVATE = {"personalization.head.weight", "personalization.head.bias"}


def created(feature_dim: int, num_classes: int, private_head: Any = "linear") -> FedROD:
    part = FedROD(private_head, "none", clip_second_phase=True)
    head = Linear(feature_dim, num_classes, bias=True)
    part.create(Network(nn.Identity(), head, feature_dim, num_classes), CrossEntropy())
    return part


def tiny() -> FedROD:
    """Two features, two classes; h(z) = (z_0, 2 z_1 + 1)."""
    part = created(2, 2)
    with torch.no_grad():
        part.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
        part.head.bias.copy_(torch.tensor([0.0, 1.0]))
    return part


def test_personal_logits_are_the_sum() -> None:
    z, logits = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.5, -0.5]])
    assert tiny().personalize(z, logits).tolist() == [[3.5, 8.5]]


def test_a_linear_private_head_starts_from_zero() -> None:
    part = created(3, 4)
    logits = torch.randn(2, 4)
    assert torch.equal(part.personalize(torch.randn(2, 3), logits), logits)


def test_the_private_loss_and_its_gradient_by_hand() -> None:
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


@pytest.mark.parametrize("second_phase", ["none", "local", "plain_sgd"])
def test_the_generic_model_does_not_depend_on_the_private_head(second_phase: str) -> None:
    """Two rounds of FedROD leave exactly what two rounds without private heads leave."""
    rod = federate(*SMALL, "algorithm=fedrod", f"personalization.second_phase={second_phase}")
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
    one, other = (federation.store.private(client) for client in (0, 1))
    assert one is not None
    assert other is not None
    assert one.keys() == other.keys() == PRIVATE
    assert all(one[name].any() and not torch.equal(one[name], other[name]) for name in PRIVATE)


def test_only_the_personal_model_adds_the_private_head() -> None:
    federation = personalized("fedrod")
    engine: Any = federation.engine
    list(engine.train([0, 1], federation.server.broadcast(1)))
    labels = federation.data.test.labels
    for client, found in Scoring(engine).score_personal(federation.server.broadcast(1)):
        module = federation.module
        module.load(federation.store.model(client))
        inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
        with torch.no_grad():
            z = module.backbone(inputs)
            logits = module.head(z)
            private = federation.store.private(client)
            weight = private["personalization.head.weight"]
            bias = private["personalization.head.bias"]
            logits = logits + z @ weight.T + bias
        assert found.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
        assert (found.correct == (logits.argmax(1) == labels)).float().mean() > 0.999
    with torch.no_grad():
        module = engine.resources.load_global(federation.server.broadcast(1)).eval()
        generic = module.head(module.backbone(inputs))
    expected = F.cross_entropy(generic, labels).item()
    found = Scoring(engine).score_global(federation.server.broadcast(1))
    assert found.loss == pytest.approx(expected, rel=1e-5)


def test_a_copied_private_head_has_no_bias_and_starts_as_the_generic_one() -> None:
    federation = personalized("fedrod", "personalization.private_head=copy")
    initial = federation.engine.resources.initial
    assert PRIVATE & initial.keys() == {"personalization.head.weight"}
    assert torch.equal(initial["personalization.head.weight"], initial["head.linear.weight"])
    train(federation, 1)
    private = federation.store.private(0)
    assert private is not None
    assert moved({"personalization.head.weight": initial["head.linear.weight"]}, private)


def test_a_copy_needs_a_linear_head() -> None:
    with pytest.raises(InputError, match=r"^head: personalization\.private_head=copy needs"):
        personalized("fedrod", "personalization.private_head=copy", "head=cosine")


def test_the_hypernetwork_by_hand() -> None:
    """d = 2, C = 2; shares (3/4, 1/4): hidden (1, 0) after ReLU, V = [[1, 2], [3, 4]]."""
    part = created(2, 2, "hypernetwork")
    first, _, last = part.hypernetwork
    with torch.no_grad():
        part.shares.copy_(torch.tensor([0.75, 0.25]))
        first.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
        first.bias.copy_(torch.tensor([0.25, 0.5]))
        last.weight.copy_(torch.tensor([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0], [3.0, 9.0]]))
        last.bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    z, logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 10.0]]), torch.tensor([[0.5, 0.0]])
    assert part.personalize(z, logits).tolist() == [[1.5, 2.0], [3.5, 4.0], [31.5, 42.0]]


def test_the_hypernetwork_is_shared_and_the_class_shares_are_private() -> None:
    federation = personalized("fedrod", "personalization.private_head=hypernetwork")
    before = copy(federation.server.weights)
    train(federation, 1)
    names = {
        f"personalization.hypernetwork.{n}" for n in ("0.weight", "0.bias", "2.weight", "2.bias")
    }
    assert {n for n in before if n.startswith("personalization.")} == names
    assert names <= moved(before, federation.server.weights)
    for client in (0, 1):
        counts = federation.data.clients[client].class_counts
        private = federation.store.private(client)
        assert private.keys() == {"personalization.shares"}
        torch.testing.assert_close(private["personalization.shares"], counts / counts.sum())


def test_personal_models_use_the_class_shares_of_their_client() -> None:
    federation = personalized("fedrod", "personalization.private_head=hypernetwork")
    engine: Any = federation.engine
    train(federation, 1)
    labels = federation.data.test.labels
    found = dict(Scoring(engine).score_personal(federation.server.broadcast(1)))
    inputs = torch.cat([x for x, _ in federation.data.test.batches(1000)])
    module = federation.module.eval()
    assert list(found) == [0, 1]
    for client, predictions in found.items():
        model = federation.store.model(client)
        module.load(model)
        own = {n.removeprefix("personalization."): w for n, w in model.items()}
        counts = federation.data.clients[client].class_counts.float()
        hidden = own["hypernetwork.0.weight"] @ (counts / counts.sum()) + own["hypernetwork.0.bias"]
        flat = own["hypernetwork.2.weight"] @ hidden.clamp(min=0) + own["hypernetwork.2.bias"]
        with torch.no_grad():
            z = module.backbone(inputs)
            logits = module.head(z) + z @ flat.reshape(64, 10)
        assert predictions.loss == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)


UNCLIPPED = ["local.grad_clip=0.01", "personalization.clip_second_phase=false"]


@pytest.mark.parametrize(
    ("momentum", "further"),
    [
        (0.0, []),
        (0.9, []),
        (0.9, UNCLIPPED),
        (0.9, [*UNCLIPPED, "engine=vectorized"]),
        (0.9, [*UNCLIPPED, "engine=trainer"]),
    ],
)
def test_the_second_phase_by_hand(momentum: float, further: list[str]) -> None:
    """One step of the private head from zero, after one step of body and generic head.

    The second step of a second epoch would differ with momentum; in plain SGD it does not. Both
    steps would differ if their gradients were clipped.
    """
    options = ["personalization.second_phase=plain_sgd", "loss=balanced_softmax", "local.epochs=2"]
    strong = [f"optimizer.momentum={momentum}", "optimizer.weight_decay=0"]
    federation = personalized("fedrod", *ONE_STEP, *options, *strong, *further)
    train(federation, 1, [0])
    model = federation.store.model(0)
    module = federation.module
    module.load(model)
    ((inputs, targets),) = federation.data.clients[0].batches(1000)
    with torch.no_grad():
        z = module.eval().backbone(inputs)
        generic = module.head(z)
    weight, bias = torch.zeros(10, 64), torch.zeros(10)
    for _ in range(2):
        error = torch.softmax(generic + z @ weight.T + bias, 1) - F.one_hot(targets, 10)
        assert (error.T @ z / len(z)).norm() > 0.05  # so that clipping would shorten it
        weight, bias = (
            weight - RATE * error.T @ z / len(z),
            bias - RATE * error.mean(0),
        )
    torch.testing.assert_close(model["personalization.head.weight"], weight, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(model["personalization.head.bias"], bias, atol=1e-6, rtol=1e-4)


def test_no_clipping_of_a_second_phase_needs_a_second_phase() -> None:
    with pytest.raises(InputError, match="clip_second_phase=false: there is no second phase"):
        personalized("fedrod", "personalization.clip_second_phase=false")


def test_a_regularizers_first_gradient_is_that_of_the_clients_own_shares() -> None:
    federation = federate(
        *("data.subset=300", "clients.count=5", "clients.per_round=3", "local.epochs=1"),
        *("personalization=fedrod", "personalization.private_head=hypernetwork"),
        *("regularizer=control_variates", "regularizer.estimate=gradient"),
    )
    state = ClientState()
    module = federation.engine.begin(2, federation.server.broadcast(1), state)
    measured = {
        name.removeprefix("gradient/"): value for name, value in state.memory("regularizer").items()
    }
    expected = module.loss_gradient()  # the client's shares are set by now
    first = "personalization.hypernetwork.0.weight"
    assert measured[first].abs().max() > 0  # with shares of zero it would be zero
    for name, value in measured.items():
        assert torch.equal(value, expected[name])
