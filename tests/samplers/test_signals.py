import math
from typing import Any

import pytest
import torch
from support.federations import federate

from fedexp.core.forward import Forward
from fedexp.core.part import Clients, Model, Setting
from fedexp.errors import InputError
from fedexp.samplers.hics import HiCS
from fedexp.samplers.signals import (
    ClassCounts,
    SignalName,
    VirtualBias,
    WeightUpdate,
    find_signal,
    flat_update,
    head_weights,
)

WEIGHT, BIAS = "head.linear.weight", "head.linear.bias"
SHAPES = {WEIGHT: torch.Size([4, 3]), BIAS: torch.Size([4])}


def setting(*shared: str) -> Setting:
    model = Model(SHAPES, frozenset(shared))
    return Setting(0, 20, 4, 3, 2, 1, Clients.of(torch.ones(2, 4)), model)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("auto", [0.5, 0, -1, 0]),
        ("bias", [0.5, 0, -1, 0]),
        ("weight_rowmean", [4, 0, -3, 1]),
        ("virtual_bias", None),
    ],
)
def test_a_bias_and_a_weight_matrix_are_read_from_the_update(
    name: SignalName, expected: list[float] | None
) -> None:
    before = {WEIGHT: torch.ones(4, 3), BIAS: torch.tensor([1.0, 2.0, 3.0, 4.0])}
    after = {
        WEIGHT: torch.ones(4, 3) + torch.tensor([[3.0], [0.0], [-3.0], [1.0]]),
        BIAS: torch.tensor([1.5, 2.0, 2.0, 4.0]),
    }
    after[WEIGHT][0, 0] += 3
    found = find_signal(name, setting(WEIGHT, BIAS)).extract(after, before)
    assert {key: value.tolist() for key, value in found.items()} == (
        {} if expected is None else {"signal": expected}
    )


def test_a_signal_read_from_the_weights_costs_no_traffic() -> None:
    batch = Forward(torch.zeros(2, 3), torch.zeros(2, 4), torch.tensor([0, 1]))
    client: Any = None
    source = WeightUpdate(BIAS)
    assert source.measure(batch) == {}
    assert source.report(client, {}) == {}


def test_the_virtual_bias_measures_minus_the_gradient_of_a_bias() -> None:
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([0, 3, 3, 1, 0])
    bias = torch.zeros(4, requires_grad=True)
    torch.nn.functional.cross_entropy(logits + bias, targets).backward()
    found = VirtualBias().measure(Forward(torch.zeros(5, 3), logits, targets))["residual"]
    assert bias.grad is not None
    torch.testing.assert_close(found, -bias.grad)
    # Padding of a batch has no effect, whatever its values.
    filled = torch.cat([logits, torch.full((2, 4), math.nan)])
    real = torch.tensor([1, 1, 1, 1, 1, 0, 0])
    padded = Forward(torch.zeros(7, 3), filled, torch.cat([targets, targets[:2]]), real)
    torch.testing.assert_close(VirtualBias().measure(padded)["residual"], found)


def test_classes_left_out_of_the_softmax_have_no_signal() -> None:
    logits = torch.tensor([[1.0, -math.inf, 1.0, -math.inf]])
    batch = Forward(torch.zeros(1, 3), logits, torch.tensor([2]))
    assert VirtualBias().measure(batch)["residual"].tolist() == [-0.5, 0, 0.5, 0]


def test_virtual_bias_is_the_bias_update_of_plain_sgd() -> None:
    federation = federate(
        "sampler=hics",
        "sampler.signal=virtual_bias",
        "clients.count=4",
        "local.epochs=2",
        "optimizer.momentum=0",
        "optimizer.weight_decay=0",
        "optimizer.round_decay=0.9",
        "clients.per_round=2",
    )
    message = federation.server.broadcast(3)
    for update in federation.engine.train([1, 2], message):
        signal = update.extras["sampler"]["signal"]
        step = update.weights[BIAS] - message.weights[BIAS]
        assert step.abs().max() > 0.01
        torch.testing.assert_close(signal, step, atol=1e-5, rtol=1e-4)
        assert signal.numel() == 10


def test_class_counts_are_sent_and_counted_as_traffic() -> None:
    few = ["sampler=hics", "head=prototype", "clients.count=4", "clients.per_round=2"]
    sent = {}
    for signal in ("class_counts", "labels"):
        federation = federate(*few, f"sampler.signal={signal}")
        message = federation.server.broadcast(1)
        (update,) = federation.engine.train([1], message)
        sent[signal] = update
    labels = federation.data.train.targets[federation.data.clients[1].train_index]
    counts = [int((labels == c).sum()) for c in range(10)]
    assert sent["class_counts"].extras["sampler"]["signal"].tolist() == counts
    assert sent["class_counts"].nbytes - sent["labels"].nbytes == 4 * 10


@pytest.mark.parametrize(
    ("head", "signal"),
    [
        *(("etf", "bias"), ("cosine", "bias"), ("etf", "weight_rowmean"), ("prototype", "bias")),
        *(("mixture", "bias"), ("mixture", "weight_rowmean")),
    ],
)
def test_a_signal_that_the_head_lacks_is_an_error(head: str, signal: str) -> None:
    with pytest.raises(InputError, match=rf"sampler\.signal={signal}: this head does not have"):
        federate("sampler=hics", f"head={head}", f"sampler.signal={signal}")


def test_weights_that_are_not_shared_are_not_read() -> None:
    without_bias, without_matrix = setting(WEIGHT), setting(BIAS)
    assert isinstance(find_signal("auto", without_bias), ClassCounts)
    with pytest.raises(InputError, match="trained and shared"):
        find_signal("bias", without_bias)
    assert head_weights(without_bias) == [WEIGHT]
    with pytest.raises(
        InputError, match=r"sampler\.angle_on=head: .*; use sampler\.angle_on=signal"
    ):
        head_weights(without_matrix)


def test_the_bias_of_a_batchnorm_as_wide_as_the_classes_is_no_output_bias() -> None:
    federation = federate(
        "sampler=hics", "head=etf", "head.feature_norm=batchnorm_affine", "model.feature_dim=10"
    )
    assert isinstance(federation.sampler, HiCS)
    assert isinstance(federation.sampler.source, ClassCounts)


def test_one_bias_of_several_is_no_signal() -> None:
    federation = federate("sampler=hics", "head=mixture")
    assert isinstance(federation.sampler, HiCS)
    assert isinstance(federation.sampler.source, ClassCounts)


def test_a_projection_as_wide_as_the_classes_is_no_output_layer() -> None:
    projected = ["sampler=hics", "head=projected_etf", "head.dim=10"]
    federation = federate(*projected)
    assert isinstance(federation.sampler, HiCS)
    assert isinstance(federation.sampler.source, ClassCounts)
    with pytest.raises(InputError, match=r"^sampler\.angle_on=head: this head has no"):
        federate(*projected, "sampler.angle_on=head")


def test_the_update_of_several_weights_as_one_vector() -> None:
    before = {WEIGHT: torch.ones(4, 3), BIAS: torch.zeros(4)}
    after = {WEIGHT: torch.ones(4, 3) * 3, BIAS: torch.arange(4.0)}
    found = flat_update(after, before, head_weights(setting(WEIGHT, BIAS)))
    assert found.tolist() == [2.0] * 12 + [0, 1, 2, 3]
