"""FedIIR: the classifier's gradient by hand and by autograd, the loss, and the server's mean."""

import pytest
import torch
import torch.nn.functional as F
from support.federations import assert_engine_agrees, federate, take_step
from support.plain_loop import SETTING, PlainLoop, assert_same
from support.plain_mlp import HEAD, descend, features, logits
from support.small_federations import SMALL, train
from torch import Tensor

from fedexp.core.client_protocol import Batch
from fedexp.core.forward import Forward
from fedexp.core.messages import Tensors
from fedexp.errors import InputError
from fedexp.losses.gradient_alignment import GradientAlignment, classifier_gradient


def test_the_gradient_by_hand() -> None:
    # Both classes have probability 1/2; the errors are (-1/2, 1/2) and (1/2, -1/2), a half each.
    z, y = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1])
    found = classifier_gradient(z, torch.zeros(2, 2), y)
    assert found.tolist() == [[0.5, -0.5, 0.0], [-0.5, 0.5, 0.0]]


def test_the_gradient_of_autograd_and_padding() -> None:
    draw = torch.Generator().manual_seed(0)
    z, w, b = (torch.randn(*shape, generator=draw) for shape in ((6, 4), (3, 4), (3,)))
    y = torch.tensor([0, 1, 2, 2, 0, 1])
    w.requires_grad_(), b.requires_grad_()
    slopes = torch.autograd.grad(F.cross_entropy(F.linear(z[:4], w, b), y[:4]), [w, b])
    real = torch.tensor([1.0, 1, 1, 1, 0, 0])
    found = classifier_gradient(z, F.linear(z, w, b), y, real)
    torch.testing.assert_close(found, torch.column_stack(slopes))


def test_the_loss_by_hand() -> None:
    loss = GradientAlignment(0.1, 0.5)
    loss.register_buffer("aim", torch.tensor([[0.5, 0.5, 1.0], [-0.5, 0.5, 0.0]]))
    z, y = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([0, 1])
    found = loss(Forward(z, torch.zeros(2, 2), y))
    assert found.item() == pytest.approx(0.693147 + 0.1 * (1 + 1))


def test_the_mean_of_two_rounds_by_hand() -> None:
    federation = federate(*SMALL, "algorithm=fediir", "loss.ema=0.75")
    expected = torch.zeros(10, 65)
    for round in (1, 2):
        message = federation.server.broadcast(round)
        if round > 1:
            torch.testing.assert_close(message.extras["loss"]["mean"], expected)
        module = federation.engine.resources.load_global(message)
        inputs, labels = (
            torch.cat(each)
            for each in zip(
                *(next(iter(federation.data.clients[c].batches(1000))) for c in (0, 1)),
                strict=True,
            )
        )
        slopes = torch.autograd.grad(
            F.cross_entropy(module(inputs), labels), list(module.head.parameters())
        )
        expected = 0.75 * expected + 0.25 * torch.column_stack(slopes)
        take_step(federation.server, list(federation.engine.train([0, 1], message)))
    found = federation.server.broadcast(3).extras["loss"]["mean"]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_three_rounds_by_plain_pytorch() -> None:
    """The steps of all clients, with the gradient of a gradient as in the authors' code."""
    words = ["algorithm=fediir", "loss.penalty=2", "loss.ema=0.6"]
    loop, federation = PlainLoop(*words), federate(*SETTING, *words)
    weights = loop.start
    mean = [torch.zeros_like(weights[name]) for name in HEAD]

    def cross_entropy(w: Tensors, batch: Batch) -> Tensor:
        return F.cross_entropy(logits(w, features(w, batch[0])), batch[1])

    def loss(w: Tensors, batch: Batch, _: int) -> Tensor:
        total = cross_entropy(w, batch)
        own = torch.autograd.grad(total, [w[name] for name in HEAD], create_graph=True)
        for slope, aim in zip(own, mean, strict=True):
            total = total + 2 * (slope - aim).square().sum()
        return total

    for round, cohort in loop.cohorts(3):
        federation.run_round(round)
        models = {k: descend(weights, loop.batches(round, k), loss) for k in cohort}
        pairs = [batch for k in cohort for batch in loop.federation.data.clients[k].batches(1000)]
        of_cohort = tuple(torch.cat(each) for each in zip(*pairs, strict=True))
        w = {name: value.clone().requires_grad_() for name, value in weights.items()}
        slopes = torch.autograd.grad(cross_entropy(w, of_cohort), [w[name] for name in HEAD])
        mean = [0.6 * old + 0.4 * new for old, new in zip(mean, slopes, strict=True)]
        weights = loop.mean(models, cohort, weights)
        assert_same(federation.server.weights, weights)


def test_all_samples_count_even_if_a_client_trains_on_fewer() -> None:
    federation = federate(*SMALL, "algorithm=fediir", "personalization=fedfomo")
    for update in federation.engine.train([0, 1], federation.server.broadcast(1)):
        assert update.extras["loss"]["count"] == update.num_samples > update.samples


def test_a_separate_model_leaves_nothing_in_memory() -> None:
    federation = federate(*SMALL, "algorithm=ditto", "loss=gradient_alignment")
    train(federation, 1)
    assert federation.store.memory(0, "loss") == {}


def test_without_penalty_it_is_fedavg() -> None:
    method, plain = federate(*SMALL, "algorithm=fediir", "loss.penalty=0"), federate(*SMALL)
    for federation in (method, plain):
        federation.run_round(1)
    for name, value in plain.server.weights.items():
        torch.testing.assert_close(value, method.server.weights[name])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["vectorized", "trainer"])
def test_engines_agree(engine: str) -> None:
    assert_engine_agrees(engine, [*SMALL, "algorithm=fediir", "loss.penalty=0.1"], rounds=2)


def test_another_head_is_refused() -> None:
    with pytest.raises(InputError, match="loss=gradient_alignment: needs a linear classifier"):
        federate("loss=gradient_alignment", "head=cosine")


@pytest.mark.parametrize("personalization", ["feddbe", "gpfl", "fedcp"])
def test_a_head_of_other_features_is_refused(personalization: str) -> None:
    with pytest.raises(InputError, match="loss=gradient_alignment: takes the features as they are"):
        federate("loss=gradient_alignment", f"personalization={personalization}")
