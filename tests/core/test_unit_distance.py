"""The distance of a constant gradient, against PyTorch's SGD."""

from typing import Any

import pytest
import torch

from fedexp.core.unit_distance import unit_distance


def distance_of_sgd(options: dict[str, Any], steps: int, gradients: Any) -> float:
    """How far torch's SGD moves a parameter at learning rate 1, given the gradient of each step."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0, **options)
    for step in range(steps):
        w.grad = torch.tensor([gradients(step)], dtype=torch.float64)
        optimizer.step()
    return -float(w.detach())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.5, "nesterov": True},
        {"momentum": 0.9, "dampening": 0.9},
        {"momentum": 0.5, "dampening": 0.2},
        {"dampening": 0.3},
    ],
)
def test_unit_distance_is_that_of_a_constant_gradient(options: dict[str, Any]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3, **options)
    for steps in (1, 2, 7):
        expected = distance_of_sgd(options, steps, lambda step: 1.0)
        assert unit_distance(optimizer, steps) == pytest.approx(expected, rel=1e-12)
    if "momentum" not in options:
        assert unit_distance(optimizer, 7) == 7


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop])
def test_the_unit_distance_of_other_optimizers_is_their_number_of_steps(kind: Any) -> None:
    options = {"momentum": 0.5} if kind is torch.optim.RMSprop else {}
    optimizer = kind([torch.nn.Parameter(torch.zeros(1))], lr=0.1, **options)
    assert unit_distance(optimizer, 7) == 7


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}, {"momentum": 0.5, "nesterov": True}])
def test_a_quadratic_pull_shortens_it(options: dict[str, Any]) -> None:
    """The loss w + (mu/2) w^2 from w = 0, learning rate 0.1 and mu = 2."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1, **options)
    for steps in range(1, 6):
        w.grad = 1 + 2 * w.detach()
        optimizer.step()
        expected = -float(w.detach()) / 0.1
        assert unit_distance(optimizer, steps, 0.1 * 2) == pytest.approx(expected, rel=1e-12)
    if not options:  # the formula of the paper
        assert expected == pytest.approx((1 - 0.8**5) / 0.2)
