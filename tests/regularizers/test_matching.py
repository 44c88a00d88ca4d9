from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from fedexp.core.messages import Tensors
from fedexp.regularizers.matching import (
    FunctionalLoss,
    match_trajectory,
    matching_loss,
    project,
    squared_distance,
)


def network(dtype: torch.dtype = torch.float64) -> tuple[FunctionalLoss, Tensors, Tensors]:
    """A smooth classifier of four numbers into three classes, its weights, and others nearby."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
        start = {name: value.detach() for name, value in module.named_parameters()}
        end = {name: value + 0.1 * torch.randn_like(value) for name, value in start.items()}

    def loss(parameters: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, parameters, (inputs,)), labels)

    return loss, start, end


def images(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(6, 4, generator=draw, dtype=dtype), torch.arange(3).repeat_interleave(2)


@pytest.mark.parametrize("recompute", [False, True])
def test_the_gradient_through_the_inner_steps(recompute: bool) -> None:
    loss, start, end = network()
    x, y = images()

    def distance(x: Tensor, size: Tensor) -> Tensor:
        return matching_loss(loss, start, end, x, y, size, 3, recompute)

    size = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(distance, (x.requires_grad_(), size))


def test_two_outer_steps_of_one_inner_step_by_hand() -> None:
    """One weight, one image: L = (w x - y)^2 / 2, so that w_1 = w - b (w x - y) x."""
    start, end, x, b, y = 1.5, 1.0, 0.8, 0.2, 2.0
    image_lr, step_lr, momentum = 0.7, 0.05, 0.5
    expected, velocity = [], np.zeros(2)
    for _ in range(2):
        error = start - b * (start * x - y) * x - end
        expected.append(error**2 / (start - end) ** 2)
        slope = 2 * error / (start - end) ** 2
        gradient = slope * np.array([-b * (2 * start * x - y), -(start * x - y) * x])
        velocity = momentum * velocity + gradient
        x, b = x - image_lr * velocity[0], b - step_lr * velocity[1]

    def loss(parameters: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (parameters["w"] * inputs - labels).square().sum()

    found, size, losses = match_trajectory(
        loss,
        {"w": torch.tensor([1.5], dtype=torch.float64)},
        {"w": torch.tensor([1.0], dtype=torch.float64)},
        torch.tensor([0.8], dtype=torch.float64),
        torch.tensor([2.0], dtype=torch.float64),
        torch.tensor(0.2, dtype=torch.float64),
        outer_steps=2,
        inner_steps=1,
        image_lr=image_lr,
        step_lr=step_lr,
        momentum=momentum,
    )
    assert found.item() == pytest.approx(x, rel=1e-12)
    assert size.item() == pytest.approx(b, rel=1e-12)
    assert losses.tolist() == pytest.approx(expected, rel=1e-12)


def test_the_loss_is_one_without_a_step_and_zero_at_the_end() -> None:
    loss, start, end = network()
    x, y = images()
    zero = torch.tensor(0.0, dtype=torch.float64)
    assert matching_loss(loss, start, end, x, y, zero, 3).item() == pytest.approx(1)
    arrived = project(loss, start, x, y, steps=3, lr=0.1)
    size = torch.tensor(0.1, dtype=torch.float64)
    assert matching_loss(loss, start, arrived, x, y, size, 3).item() == pytest.approx(0, abs=1e-20)


def test_matching_lowers_its_loss() -> None:
    loss, start, _ = network()
    x, y = images()
    real = torch.randn(20, 4, generator=torch.Generator().manual_seed(2), dtype=x.dtype)
    end = project(loss, start, real, torch.arange(20) % 3, steps=10, lr=0.1)
    size = torch.tensor(0.1, dtype=x.dtype)
    _, _, losses = match_trajectory(
        loss, start, end, x, y, size, outer_steps=40, inner_steps=5, image_lr=0.3, step_lr=1e-3
    )
    assert losses[-1] < 0.5 * losses[0]


def test_nothing_given_is_changed() -> None:
    loss, start, end = network()
    x, y = images()
    size = torch.tensor(0.1, dtype=torch.float64)
    given = [*start.values(), *end.values(), x, size]
    before = [tensor.clone() for tensor in given]
    match_trajectory(loss, start, end, x, y, size, outer_steps=2, inner_steps=2, image_lr=1.0)
    project(loss, start, x, y)
    assert all(map(torch.equal, given, before))
    assert not any(tensor.requires_grad for tensor in given)


def test_recomputing_gives_the_same_numbers() -> None:
    loss, start, end = network()
    x, y = images()
    size = torch.tensor(0.1, dtype=torch.float64)
    problem = (loss, start, end, x, y, size)
    kept = match_trajectory(*problem, outer_steps=5, inner_steps=4, image_lr=1.0)
    again = match_trajectory(*problem, outer_steps=5, inner_steps=4, image_lr=1.0, recompute=True)
    for a, b in zip(kept, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("recompute", [False, True])
def test_each_inner_step_has_a_transform_of_its_own(recompute: bool) -> None:
    """Asked once for each step, and the same again where a step is recomputed: by gradcheck."""
    loss, start, end = network()
    x, y = images()
    size = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    factors: list[float] = []

    def augment() -> Callable[[Tensor], Tensor]:
        factors.append(1.0 + len(factors) % 3)
        return partial(torch.mul, other=torch.tensor(factors[-1], dtype=torch.float64))

    def distance(x: Tensor, size: Tensor) -> Tensor:
        return matching_loss(loss, start, end, x, y, size, 3, recompute, augment)

    by_hand = start
    for factor in (1, 2, 3):
        by_hand = project(loss, by_hand, factor * x, y, steps=1, lr=0.3)
    expected = squared_distance(by_hand, end) / squared_distance(start, end)
    torch.testing.assert_close(distance(x, size), expected)
    assert factors == [1, 2, 3]
    assert torch.autograd.gradcheck(distance, (x.requires_grad_(), size))


class Kept:
    """A tensor that a graph keeps; counts the elements of all that are kept now."""

    now = 0

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # else a graph that keeps its own result is a cycle
        Kept.now += tensor.numel()

    def __del__(self) -> None:
        Kept.now -= self.tensor.numel()


@contextmanager
def counting() -> Iterator[None]:
    Kept.now = 0

    def unpack(kept: Any) -> Tensor:
        found: Tensor = kept.tensor
        return found

    with torch.autograd.graph.saved_tensors_hooks(Kept, unpack):
        yield


def test_recomputing_keeps_no_more_of_a_step_than_its_parameters_and_images() -> None:
    loss, start, end = network()
    x, y = images()
    size = torch.tensor(0.1, dtype=torch.float64)

    def kept(inner_steps: int, recompute: bool) -> int:
        with counting():
            graph = matching_loss(
                *(loss, start, end, x.clone().requires_grad_(), y, size, inner_steps, recompute)
            )
            found = Kept.now
        del graph
        return found

    parameters = sum(value.numel() for value in start.values())
    a_step = kept(5, recompute=True) - kept(4, recompute=True)
    assert a_step <= parameters + x.numel() + size.numel()
    assert kept(5, recompute=False) - kept(4, recompute=False) > 2 * a_step


def test_projecting_by_hand() -> None:
    """L = (w - x)^2 / 2 has gradient w - x: the distance shrinks by 1 - lr in each step."""

    def loss(parameters: Tensors, inputs: Tensor, labels: Tensor) -> Tensor:
        return 0.5 * (parameters["w"] - inputs).square().sum() + 0 * labels.sum()

    start = {"w": torch.tensor([3.0]), "unused": torch.tensor([7.0])}
    found = project(loss, start, torch.tensor([1.0]), torch.tensor([0]), steps=5, lr=0.1)
    assert found["w"].item() == pytest.approx(1 + 2 * 0.9**5)
    assert found["unused"].item() == 7
    assert not found["w"].requires_grad


def test_a_squared_distance_is_over_all_tensors() -> None:
    a = {"v": torch.tensor([1.0, 2.0]), "w": torch.tensor(3.0)}
    b = {"v": torch.tensor([0.0, 4.0]), "w": torch.tensor(0.0), "x": torch.tensor(9.0)}
    assert squared_distance(a, b).item() == 1 + 4 + 9
