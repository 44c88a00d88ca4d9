"""A batch that is filled up gives the loss and the gradient of the batch itself."""

import pytest
import torch
from torch import Tensor

from fedexp.losses.base import Forward, Loss, mean_over
from fedexp.losses.cross_entropy import CrossEntropy
from fedexp.losses.semantic import RpclCpdr
from fedexp.parts import Setting

CLASSES, DIM, SAMPLES, FILLING = 4, 6, 5, 3


def semantic() -> Loss:
    """RPCL and CPDR with prototypes of three clients; class 3 has none."""
    loss = RpclCpdr(1.0, 1.0, 1.0, 0.5, "batch", "mse", 2, "angle")
    loss.setup(Setting(0, 1, CLASSES, DIM, 9, 3, torch.ones(9, CLASSES), {}))
    draw = torch.Generator().manual_seed(1)
    loss.relational = torch.randn(3, CLASSES, DIM, generator=draw)
    loss.consistent = loss.relational.mean(0)
    loss.holds = torch.tensor([[True, True, True, False]] * 3)
    loss.consistent_holds = loss.holds[0]
    return loss


def gradient(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


@pytest.mark.parametrize("loss", [CrossEntropy(), semantic()], ids=["ce", "semantic"])
def test_filling_changes_nothing(loss: Loss) -> None:
    draw = torch.Generator().manual_seed(0)
    z = torch.randn(SAMPLES, DIM, generator=draw, dtype=torch.float32, requires_grad=True)
    logits = torch.randn(SAMPLES, CLASSES, generator=draw, requires_grad=True)
    y = torch.tensor([0, 1, 3, 2, 1])
    plain = loss(Forward(z, logits, y))
    expected = gradient(plain, z, logits)

    filling = torch.randn(FILLING, DIM, generator=draw), torch.randn(FILLING, CLASSES)
    filled = loss(
        Forward(
            torch.cat([z, filling[0]]),
            torch.cat([logits, filling[1]]),
            torch.cat([y, torch.zeros(FILLING, dtype=torch.int64)]),
            torch.tensor([1.0] * SAMPLES + [0.0] * FILLING),
        )
    )
    torch.testing.assert_close(filled, plain)
    torch.testing.assert_close(gradient(filled, z, logits), expected)


def test_what_has_no_weight_may_be_infinite() -> None:
    values = torch.tensor([[1.0, 2.0], [torch.inf, torch.nan], [3.0, 6.0]])
    found = mean_over(values, torch.tensor([1, 0, 1]))
    assert found.tolist() == [2.0, 4.0]


def test_without_weight_the_mean_is_zero() -> None:
    assert mean_over(torch.tensor([torch.inf]), torch.tensor([0.0])).item() == 0
