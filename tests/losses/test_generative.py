"""FedGen's loss: its terms by independent computation, its draws, and both halves together."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.draws import draw
from support.federations import begin_client, equal, federate, take_step
from support.state_files import through_a_file
from torch import Tensor, nn

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.randomness import key, torch_generator, uniform
from fedexp.errors import InputError
from fedexp.losses.distillation import distillation
from fedexp.losses.generative import Generative
from fedexp.losses.generator import FeatureGenerator, GeneratorTraining, generate

CLASSES, DIM, NOISE, HIDDEN = 4, 5, 3, 7
SMALL = ["clients.count=6", "clients.per_round=4", "data.subset=300", "local.epochs=2"]
FEDGEN = [*SMALL, "algorithm=fedgen", "loss.steps=5", "loss.noise_dim=4", "loss.hidden=8"]
LABELS = torch.tensor([2, 0, 1, 2, 3, 1])


def folded() -> Tensors:
    torch.manual_seed(3)
    return FeatureGenerator(NOISE, HIDDEN, CLASSES, DIM).eval().folded()


def make(a: float = 3.0, b: float = 2.0, decay: float = 0.5) -> Generative:
    loss = Generative(a, b, decay, NOISE, HIDDEN, 2, 4, 0.01, 1.0, 0.0, 1.0)
    loss.setup(Setting(7, 9, CLASSES, DIM, 9, 3, Clients.of(torch.ones(9, CLASSES)), Model({})))
    return loss


def received(round: int = 2, **options: float) -> Generative:
    """A loss at a client that got a generator."""
    loss = make(**options)
    loss.receive(PartMessage(round, {}, folded()))
    return loss


HEAD = nn.Linear(DIM, CLASSES)


# The terms.


def test_distillation_is_the_divergence_from_the_teacher() -> None:
    student, teacher = draw(6, CLASSES).requires_grad_(), draw(6, CLASSES, seed=1).requires_grad_()
    found = distillation(student, teacher)
    expected = F.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="none").sum(1)
    torch.testing.assert_close(found, expected)
    by_student, by_teacher = torch.autograd.grad(found.sum(), (student, teacher), allow_unused=True)
    torch.testing.assert_close(by_student, (student.softmax(1) - teacher.softmax(1)).detach())
    assert by_teacher is None


def test_value_and_gradients_by_independent_computation() -> None:
    loss = received(round=3)  # t = 2: a = 3 * 0.5^2, b = 2 * 0.5^2
    z = draw(6, DIM).requires_grad_()
    found = loss(Forward(z, HEAD(z), LABELS, None, head=HEAD, step=4))
    numbers = uniform(torch.tensor(key(7, "generated_features", 3)), 4, 6, 1 + 2 * NOISE)
    y = (numbers[:, 0] * CLASSES).long()
    generated = generate(folded(), numbers[:, 1 : 1 + NOISE], y)
    teacher = HEAD(generate(folded(), numbers[:, 1 + NOISE :], LABELS)).softmax(1).detach()
    plain = F.cross_entropy(HEAD(z), LABELS)
    student = HEAD(z).log_softmax(1)
    kl = F.kl_div(student, teacher, reduction="batchmean")
    expected = plain + 0.75 * F.cross_entropy(HEAD(generated), y) + 0.5 * kl
    torch.testing.assert_close(found, expected)
    assert kl > 0.01
    inputs = (z, *HEAD.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs)
    )


def test_generated_features_train_the_head_only() -> None:
    z = draw(6, DIM).requires_grad_()
    grads = []
    for a in (0.0, 50.0):
        found = received(a=a, b=0.0)(Forward(z, HEAD(z), LABELS, None, head=HEAD))
        grads.append(torch.autograd.grad(found, (z, HEAD.weight)))
    torch.testing.assert_close(grads[0][0], grads[1][0], atol=1e-4, rtol=0)
    assert not torch.allclose(grads[0][1], grads[1][1], atol=0.1)


@pytest.mark.parametrize(("round", "expected"), [(2, (1.5, 1.0)), (4, (0.375, 0.25)), (40, None)])
def test_the_weights_of_a_round(round: int, expected: tuple[float, float] | None) -> None:
    found = received(round).weights.tolist()
    assert found == pytest.approx(expected or (1e-4, 1e-4))


def test_without_a_generator_it_is_cross_entropy() -> None:
    loss = received()
    z = draw(6, DIM)
    batch = Forward(z, HEAD(z), LABELS, None, head=HEAD)
    assert loss(batch) > F.cross_entropy(HEAD(z), LABELS) + 0.1
    loss.receive(PartMessage(1, {}))
    torch.testing.assert_close(loss(batch), F.cross_entropy(HEAD(z), LABELS))


def test_padding_changes_nothing() -> None:
    loss, z = received(), draw(9, DIM)
    labels = torch.cat([LABELS, torch.zeros(3, dtype=torch.int64)])
    plain = loss(Forward(z[:6], HEAD(z[:6]), LABELS, None, head=HEAD, step=1))
    real = torch.tensor([1.0] * 6 + [0.0] * 3)
    padded = Forward(z, HEAD(z), labels, real, head=HEAD, step=1)
    torch.testing.assert_close(loss(padded), plain)
    measured = loss.measure(padded)["seen"]
    assert measured.tolist() == [1, 2, 2, 1] == LABELS.bincount().tolist()


def test_classes_that_the_head_leaves_out_are_left_out() -> None:
    """The loss is finite, and that of the other classes alone."""
    left_out = torch.tensor([0.0, 0.0, 0.0, -torch.inf])

    def head(z: Tensor) -> Tensor:
        return HEAD(z) + left_out

    loss, z = received(a=1.0, b=1.0), draw(6, DIM).requires_grad_()
    labels = LABELS.clamp(max=2)
    found = loss(Forward(z, head(z), labels, None, head=head))
    numbers = uniform(torch.tensor(key(7, "generated_features", 2)), 0, 6, 1 + 2 * NOISE)
    y = (numbers[:, 0] * CLASSES).long()
    assert (y == 3).any()
    logits = HEAD(generate(folded(), numbers[:, 1 : 1 + NOISE], y))[y < 3][:, :3]
    teacher = HEAD(generate(folded(), numbers[:, 1 + NOISE :], labels))[:, :3].softmax(1)
    kl = F.kl_div(HEAD(z)[:, :3].log_softmax(1), teacher, reduction="batchmean")
    expected = F.cross_entropy(HEAD(z)[:, :3], labels) + 0.5 * (
        F.cross_entropy(logits, y[y < 3]) + kl
    )
    torch.testing.assert_close(found, expected)
    (gradient,) = torch.autograd.grad(found, z)
    assert gradient.isfinite().all()


def test_its_buffers_are_not_part_of_the_model() -> None:
    assert make().state_dict() == {}
    assert list(make().parameters()) == []


# In a federation.


def test_the_first_round_is_fedavg_and_later_ones_are_not() -> None:
    fedavg, fedgen = federate(*SMALL), federate(*FEDGEN)
    for round in (1, 2):
        fedavg.run_round(round)
        fedgen.run_round(round)
        assert equal(fedavg.server.weights, fedgen.server.weights) == (round == 1)


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_clients_report_what_they_trained_on(engine: str) -> None:
    federation = federate(*FEDGEN, f"engine={engine}")
    clients = federation.data.clients
    for update in federation.engine.train([0, 1, 2], federation.server.broadcast(1)):
        counts = clients[update.client].class_counts
        assert update.extras["loss"]["seen"].tolist() == (2 * counts).tolist()


def test_the_server_trains_the_generator_against_the_cohorts_heads() -> None:
    federation = federate(*FEDGEN)
    loss: Any = federation.module.loss
    generator = FeatureGenerator(4, 8, 10, federation.module.head.linear.in_features)
    generator.load_state_dict(loss.server_state()["generator"])
    updates = list(federation.engine.train([4, 1, 3], federation.server.broadcast(1)))
    take_step(federation.server, updates)
    heads = [
        partial(
            F.linear,
            weight=update.weights["head.linear.weight"],
            bias=update.weights["head.linear.bias"],
        )
        for update in sorted(updates, key=lambda update: update.client)
    ]
    seen = torch.stack([2.0 * federation.data.clients[c].class_counts for c in (1, 3, 4)])
    training = GeneratorTraining(generator, 5, 16, 3e-4, 0.98, 0.01, 1.0)
    last = training.train(heads, seen, torch_generator(0, "train_generator", 0))
    sent = federation.server.broadcast(2).extras["loss"]
    for name, value in generator.folded().items():
        torch.testing.assert_close(sent[name], value)
    assert federation.server.metrics()["generator/loss"] == pytest.approx(last, rel=1e-4)


def test_draws_differ_between_clients_rounds_and_steps() -> None:
    federation = federate(*FEDGEN)
    federation.run_round(1)
    found = []
    for client, round in ((0, 2), (1, 2), (0, 3)):
        module = begin_client(federation.engine, client, federation.server.broadcast(round))
        loss: Any = module.loss
        found += [uniform(loss.key, step, 8) for step in (0, 1)]
    assert len({tuple(each.tolist()) for each in found}) == 6


def test_every_step_has_draws_of_its_own() -> None:
    """What the engine passes as ``step`` counts from 0 over all epochs."""
    federation = federate(*FEDGEN)
    steps = []
    module = federation.module
    measure = module.loss.measure

    def spy(batch: Forward) -> Tensors:
        steps.append(int(batch.step))
        return measure(batch)

    object.__setattr__(module.loss, "measure", spy)
    list(federation.engine.train([0], federation.server.broadcast(1)))
    assert steps == list(range(len(steps)))
    assert len(steps) >= 4


def test_the_bytes_sent_are_counted() -> None:
    plain, fedgen = federate(*SMALL), federate(*FEDGEN)
    width = plain.server.weights["head.linear.weight"].shape[1]
    generator = 4 * (8 * (4 + 10) + 8 + width * 8 + width)
    for round, download in ((1, 0), (2, 4 * generator)):
        one, other = plain.run_round(round).metrics, fedgen.run_round(round).metrics
        assert other["cost/download_bytes"] - one["cost/download_bytes"] == download
        assert other["cost/upload_bytes"] - one["cost/upload_bytes"] == 4 * 10 * 4


def test_a_restored_server_goes_on_with_the_same_bits() -> None:
    whole, resumed = federate(*FEDGEN), federate(*FEDGEN)
    for round in (1, 2):
        whole.run_round(round)
    resumed.server.load_state_dict(through_a_file(whole.server.state_dict()))
    for federation in (whole, resumed):
        federation.run_round(3)
    some, others = (f.server.broadcast(4) for f in (whole, resumed))
    assert equal(some.weights, others.weights)
    assert equal(some.extras["loss"], others.extras["loss"])


@pytest.mark.parametrize("personalization", ["fedper", "fedbabu", "local"])
def test_private_heads_are_refused(personalization: str) -> None:
    with pytest.raises(InputError, match=r"^loss=generative: .* head\.linear\.bias is not sent"):
        federate(*FEDGEN, f"personalization={personalization}")


@pytest.mark.parametrize(
    "override", ["loss.batch_size=1", "loss.decay=1.5", "loss.steps=0", "loss.noise_dim=x"]
)
def test_wrong_values_are_named(override: str) -> None:
    with pytest.raises(InputError, match=rf"^{override}: should be"):
        federate(*FEDGEN, override)
