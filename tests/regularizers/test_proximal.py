from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedexp.core.messages import PartMessage
from fedexp.core.part import Clients, Model, Setting
from fedexp.regularizers.proximal import Proximal


def anchored(mu: float, anchor: dict[str, torch.Tensor]) -> Proximal:
    shapes = {name: value.shape for name, value in anchor.items()}
    part = Proximal(mu)
    part.setup(Setting(0, 1, 1, 1, 1, 1, Clients.of(torch.ones(1, 1)), Model(shapes)))
    client: Any = SimpleNamespace(weights=anchor)
    part.begin(client, PartMessage(1, anchor), {})
    return part


def test_value_and_gradient_by_hand() -> None:
    # a quadratic of two parameters: mu/2 ((3-1)^2 + (0-2)^2), gradient mu (w - anchor)
    w = {
        "a.weight": torch.tensor([3.0], requires_grad=True),
        "b": torch.zeros(1, requires_grad=True),
    }
    part = anchored(0.5, {"a.weight": torch.tensor([1.0]), "b": torch.tensor([2.0])})
    penalty = part(w.items())
    penalty.backward()
    assert penalty.item() == pytest.approx(0.25 * (4 + 4))
    assert w["a.weight"].grad == pytest.approx(0.5 * 2)
    assert w["b"].grad == pytest.approx(0.5 * -2)


def test_gradient_by_finite_differences() -> None:
    anchor = torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    part = anchored(0.3, {"w": anchor}).double()
    part.anchors.set({"w": anchor})
    w = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda w: part([("w", w)]), w)


def test_it_is_zero_where_local_training_starts() -> None:
    start = {"w": torch.randn(4)}
    assert anchored(1.0, start)(start.items()).item() == 0.0


def test_the_anchor_is_a_copy_and_not_part_of_the_model() -> None:
    start = {"w": torch.zeros(4)}
    part = anchored(1.0, start)
    start["w"] += 1
    assert part(start.items()).item() == pytest.approx(0.5 * 4)
    assert part.state_dict() == {}
    assert len(list(part.buffers())) == 1
