"""The focal loss and smoothed labels, by hand."""

import math
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from fedexp.core.forward import Forward
from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.losses.adjusted import BalancedSoftmax, LogitAdjustment
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.losses.focal import Focal
from fedexp.losses.label_smoothing import LabelSmoothing
from fedexp.testing import check_part

LOGITS = torch.tensor([[0.0, math.log(3)], [math.log(9), 0.0]])  # probabilities of the labels:
TARGETS = torch.tensor([1, 1])  # 3/4 and 1/10


def batch(logits: Tensor = LOGITS, real: Tensor | None = None) -> Forward:
    return Forward(torch.zeros(len(logits), 1), logits, TARGETS[: len(logits)], real)


def test_focal_by_hand() -> None:
    expected = -(0.25**2 * math.log(0.75) + 0.9**2 * math.log(0.1)) / 2
    assert Focal(2.0)(batch()).item() == pytest.approx(expected, rel=1e-6)


def test_without_gamma_it_is_cross_entropy() -> None:
    assert Focal(0.0)(batch()).item() == pytest.approx(CrossEntropy()(batch()).item())


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_the_gradient_is_finite_where_the_model_is_certain(gamma: float) -> None:
    logits = torch.tensor([[0.0, 200.0], [200.0, 0.0]], requires_grad=True)
    Focal(gamma)(batch(logits)).backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[1].tolist() == pytest.approx([0.5, -0.5])


def test_padding_does_not_count() -> None:
    real = torch.tensor([1.0, 0.0])
    expected = -(0.25**2) * math.log(0.75)
    assert Focal(2.0)(batch(real=real)).item() == pytest.approx(expected, rel=1e-6)
    smooth = LabelSmoothing(0.2)(batch(real=real)).item()
    assert smooth == pytest.approx(-0.9 * math.log(0.75) - 0.1 * math.log(0.25), rel=1e-6)


def adjusted(tau: float, absent: Literal["exclude", "one_sample"] = "exclude") -> LogitAdjustment:
    return LogitAdjustment(tau, absent, "adjusted")


def test_absent_classes_may_count_as_one_sample() -> None:
    counts = torch.tensor([2.0, 6.0, 0.0])
    shift = adjusted(0.5, "one_sample").adjustment(counts)[1]
    assert shift.tolist() == pytest.approx([0.5 * math.log(n / 8) for n in (2, 6, 1)])


@pytest.mark.parametrize("personal", ["adjusted", "cross_entropy"])
@pytest.mark.parametrize("is_personal", [False, True])
def test_a_personal_model_may_have_cross_entropy(
    personal: Literal["adjusted", "cross_entropy"], is_personal: bool
) -> None:
    loss = LogitAdjustment(1, "exclude", personal)
    loss.setup(Setting(0, 1, 3, 2, 1, 1, Clients.of(torch.ones(1, 3)), Model({})))
    counts = torch.tensor([2, 6, 0])
    client: Any = SimpleNamespace(
        data=SimpleNamespace(class_counts=counts), is_personal=is_personal
    )
    loss.begin(client, PartMessage(1, {}), {})
    is_plain = is_personal and personal == "cross_entropy"
    assert (loss.shift.tolist() == [0, 0, 0]) == is_plain


def test_logit_adjustment_by_hand() -> None:
    counts = torch.tensor([1.0, 3.0, 0.0])
    scale, shift = adjusted(0.5).adjustment(counts)
    assert scale.tolist() == [1, 1, 1]
    assert shift.tolist() == pytest.approx([0.5 * math.log(0.25), 0.5 * math.log(0.75), -math.inf])
    assert torch.equal(adjusted(1).adjustment(counts)[1], BalancedSoftmax().adjustment(counts)[1])
    assert adjusted(0).adjustment(counts)[1].tolist() == [0, 0, -math.inf]


@pytest.mark.slow
@pytest.mark.parametrize("option", ["focal", "label_smoothing", "logit_adjustment"])
def test_the_contract(option: str) -> None:
    check_part(f"loss={option}")
