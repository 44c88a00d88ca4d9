"""The local gradients on quadratics, by hand, and in training, against plain PyTorch."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.federations import federate, weights_after
from support.plain_loop import LR, SETTING, PlainLoop, assert_same
from support.small_federations import BATCHNORM
from torch import Tensor

from fedexp.core.batch_part import part_of
from fedexp.core.client_protocol import GradientAt
from fedexp.core.messages import Message, PartMessage, Tensors
from fedexp.core.part import Clients, Model, Setting
from fedexp.core.sockets import LocalGradient
from fedexp.errors import InputError
from fedexp.gradients.locally_estimated import LocallyEstimated
from fedexp.gradients.meta import Meta
from fedexp.gradients.sharpness_aware import SharpnessAware
from fedexp.testing import check_part

HESSIANS = [torch.diag(torch.tensor([1.0, 2.0])) * scale for scale in (1.0, 3.0, 5.0)]
"""Of the loss w^T H w / 2 on the first, second and third part of a batch."""
START = {"a": torch.tensor([3.0, 2.0])}


class Difference(LocalGradient):
    """The gradient at the current weights, computed twice: it trains nothing."""

    def forward(self, parameters: Tensors, own: Tensors, gradient_at: GradientAt) -> Tensors:
        return {name: value - own[name] for name, value in gradient_at(parameters).items()}


def quadratic(parameters: Tensors, part: int = 0, parts: int = 1) -> Tensors:
    return {"a": HESSIANS[part] @ parameters["a"]}


def test_the_plain_gradient_is_the_objectives_own() -> None:
    own = quadratic(START)
    assert LocalGradient()(START, own, quadratic) is own
    assert LocalGradient().is_plain
    assert not SharpnessAware(0.1).is_plain


def test_sharpness_aware_by_hand() -> None:
    # g = (3, 4) has length 5; at w + 0.5 g / 5 = (3.3, 2.4) the gradient is (3.3, 4.8)
    found = SharpnessAware(0.5)(START, quadratic(START), quadratic)
    torch.testing.assert_close(found["a"], torch.tensor([3.3, 4.8]))


def test_where_the_gradient_is_zero_nothing_moves() -> None:
    zero = {"a": torch.zeros(2)}
    found = SharpnessAware(0.5)(zero, quadratic(zero), quadratic)
    assert found["a"].tolist() == [0, 0]


def test_the_locally_estimated_direction_is_the_servers_last_way_back() -> None:
    part = LocallyEstimated(0.5)
    shapes = {"a": torch.Size([2])}
    counts = torch.ones(1, 1)
    part.setup(Setting(0, 1, 1, 1, 1, 1, Clients.of(counts), Model(shapes, frozenset(shapes))))
    memory: Tensors = {}
    client: Any = None
    part.begin(client, PartMessage(1, {"a": torch.tensor([1.0, 1.0])}), memory)
    torch.testing.assert_close(part(START, {}, quadratic)["a"], quadratic(START)["a"])
    part.begin(client, PartMessage(2, {"a": torch.tensor([-2.0, -3.0])}), memory)
    # w_old - w = (3, 4): the gradient is taken at (3, 2) + 0.1 (3, 4) = (3.3, 2.4)
    torch.testing.assert_close(part(START, {}, quadratic)["a"], torch.tensor([3.3, 4.8]))


def test_meta_by_hand() -> None:
    first = Meta(0.1, "first_order", 0.5)(START, {}, quadratic)["a"]
    # w - 0.1 (3, 4) = (2.7, 1.6), where the second part's gradient is 3 (2.7, 3.2)
    torch.testing.assert_close(first, torch.tensor([8.1, 9.6]))
    # On a quadratic the difference of gradients is H g, whatever delta is: (1 - 0.1 * 5 h) g
    full = Meta(0.1, "hessian_free", 0.5)(START, {}, quadratic)["a"]
    torch.testing.assert_close(full, torch.tensor([8.1 * (1 - 0.5), 9.6 * (1 - 1.0)]))


def test_meta_is_the_gradient_of_its_objective() -> None:
    """With the same samples in all parts it is d/dw f(w - alpha grad f(w)), by autograd."""
    weights = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)

    def f(w: Tensor) -> Tensor:
        return (w**4).sum() / 4 + w.prod()

    def at(parameters: Tensors, part: int = 0, parts: int = 1) -> Tensors:
        point = parameters["a"].detach().requires_grad_()
        return {"a": torch.autograd.grad(f(point), point)[0]}

    (inner,) = torch.autograd.grad(f(weights), weights, create_graph=True)
    (expected,) = torch.autograd.grad(f(weights - 0.1 * inner), weights)
    found = Meta(0.1, "hessian_free", 1e-4)({"a": weights.detach()}, {}, at)["a"]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-8)


SMALL = ["clients.count=3", "clients.per_round=2", "data.subset=90", "local.epochs=2"]


def plain_loop(overrides: list[str], step: Any) -> None:
    federation = federate(*SMALL, *overrides, "optimizer.momentum=0", "optimizer.weight_decay=0")
    message = federation.server.broadcast(1)
    weights = {n: w.clone().requires_grad_() for n, w in message.weights.items()}
    data = federation.data.clients[0].local_batches(1, 16)
    module = federation.engine.resources.load_global(message)

    def gradient(at: Tensors, inputs: Tensor, targets: Tensor) -> Tensors:
        point = {name: value.detach().requires_grad_() for name, value in at.items()}
        logits = torch.func.functional_call(module, point, (inputs,))
        found = torch.autograd.grad(F.cross_entropy(logits, targets), list(point.values()))
        return dict(zip(point, found, strict=True))

    for _ in range(2):
        for inputs, targets in data:
            taken = step(weights, gradient, inputs, targets)
            weights = {name: w.detach() - 0.01 * taken[name] for name, w in weights.items()}
    (update,) = federation.engine.train([0], Message(1, message.weights))
    for name, value in update.weights.items():
        torch.testing.assert_close(value, weights[name], rtol=1e-5, atol=1e-6)


def sam_step(weights: Tensors, gradient: Any, inputs: Tensor, targets: Tensor) -> Tensors:
    g = gradient(weights, inputs, targets)
    length = torch.cat([each.flatten() for each in g.values()]).norm()
    return gradient({n: w + 0.05 * g[n] / length for n, w in weights.items()}, inputs, targets)


def maml_step(weights: Tensors, gradient: Any, inputs: Tensor, targets: Tensor) -> Tensors:
    g = gradient(weights, inputs[::2], targets[::2])
    after = {n: w - 0.01 * g[n] for n, w in weights.items()}
    return gradient(after, inputs[1::2], targets[1::2])


@pytest.mark.parametrize(("option", "step"), [("sam", sam_step), ("meta", maml_step)])
@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_training_equals_a_plain_loop(engine: str, option: str, step: Any) -> None:
    plain_loop([f"gradient={option}", f"engine={engine}", "optimizer.lr=0.01"], step)


@pytest.mark.parametrize("engine", ["serial", "vectorized", "trainer"])
def test_three_rounds_of_lesam_by_a_plain_loop(engine: str) -> None:
    """A client climbs towards the global model of its last turn; in its first turn nowhere."""
    loop, received, climbed = PlainLoop("gradient=lesam"), dict[int, Tensors](), 0
    x = loop.start
    for round, cohort in loop.cohorts(3):
        trained = {}
        for k in cohort:
            y, d = x, {n: received.get(k, x)[n] - w for n, w in x.items()}
            length = torch.cat([each.flatten() for each in d.values()]).norm()
            ascent = {n: 0.05 * each / length.clamp(min=1e-12) for n, each in d.items()}
            for batch in loop.batches(round, k):
                g = loop.gradient({n: w + ascent[n] for n, w in y.items()}, batch)
                y = {n: w - LR * g[n] for n, w in y.items()}
            climbed += k in received
            received[k], trained[k] = x, y
        x = loop.mean(trained, cohort, x)
    assert climbed > 0
    federation = federate(*SETTING, "gradient=lesam", f"engine={engine}")
    assert_same(weights_after(federation, 3), x)


def test_a_part_that_would_be_empty_is_the_first_sample() -> None:
    inputs, targets = torch.arange(6.0).view(6, 1), torch.arange(6)

    def taken(count: int, part: int, parts: int) -> list[int]:
        """The samples that count in a part of a batch of ``count`` samples, alone and padded."""
        of_batch = part_of(inputs[:count], targets[:count], None, part, parts)
        assert of_batch[2] is None
        padded = inputs.clone(), targets.clone(), (targets < count).float()
        stacked = [torch.stack((each, each)) for each in padded]
        of_stack = torch.func.vmap(lambda *batch: part_of(*batch, part, parts))(*stacked)
        for _, y, real in zip(*of_stack, strict=True):
            assert y[real > 0].tolist() == of_batch[1].tolist()
        assert of_batch[0].flatten().tolist() == of_batch[1].tolist()
        return of_batch[1].tolist()

    assert [taken(5, part, 2) for part in range(2)] == [[0, 2, 4], [1, 3]]
    assert [taken(1, part, 2) for part in range(2)] == [[0], [0]]
    assert [taken(2, part, 3) for part in range(3)] == [[0], [1], [0]]


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_batches_of_one_sample_train(engine: str) -> None:
    words = [*SMALL, "gradient=meta", "local.batch_size=1", f"engine={engine}"]
    federation = federate(*words, "optimizer.weight_decay=0")
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    assert not torch.equal(update.weights["head.linear.bias"], message.weights["head.linear.bias"])


@pytest.mark.parametrize("engine", ["serial", "vectorized"])
def test_mixed_precision_leaves_the_head_s_gradient_in_32_bits(engine: str) -> None:
    words = ["model=custom", "model._target_=support.federations.flatten"]
    words += ["engine.precision=bf16-mixed", f"engine={engine}", "optimizer.weight_decay=0"]
    federation = federate(*SMALL, *words, f"gradient._target_={__name__}.Difference")
    message = federation.server.broadcast(1)
    (update,) = federation.engine.train([0], message)
    for name in ("head.linear.weight", "head.linear.bias"):
        torch.testing.assert_close(update.weights[name], message.weights[name], atol=1e-6, rtol=0)


def test_running_statistics_follow_the_first_pass_alone() -> None:
    one_step = [*SMALL, *BATCHNORM, "local.epochs=1", "local.batch_size=64"]
    statistics = []
    for option in ("plain", "sam"):
        federation = federate(*one_step, f"gradient={option}")
        (update,) = federation.engine.train([0], federation.server.broadcast(1))
        statistics.append(update.weights["backbone.2.running_mean"])
        assert update.weights["backbone.2.num_batches_tracked"] == 1
    assert torch.equal(*statistics)


def test_a_part_of_a_batch_needs_no_batchnorm() -> None:
    with pytest.raises(InputError, match="gradient=meta divides each batch"):
        federate("gradient=meta", "model=resnet10", "model.norm=batch", "data=cifar10")


@pytest.mark.slow
def test_the_contract() -> None:
    check_part("gradient=meta")


@pytest.mark.slow
def test_it_combines_with_other_sockets() -> None:
    federation = federate(*SMALL, "algorithm=fednh", "regularizer=proximal", "gradient=sam")
    for round in (1, 2):
        assert federation.run_round(round).metrics["train/loss"] > 0
