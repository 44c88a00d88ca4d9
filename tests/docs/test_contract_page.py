"""The page with the contract of a part names all of it, and its example keeps it."""

import re
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fedexp.core.client_protocol import Client, LocalData
from fedexp.core.forward import Forward
from fedexp.core.part import Clients, Model, Part, PartUpdate, ServerTools, Setting
from fedexp.core.sockets import (
    Aggregator,
    Head,
    LocalGradient,
    Loss,
    Network,
    Personalization,
    Regularizer,
)
from fedexp.samplers.base import Sampler

PAGE = (Path(__file__).parents[2] / "docs/api/contract.md").read_text(encoding="utf-8")
SOCKETS = (Head, Loss, Regularizer, LocalGradient, Personalization, Sampler, Aggregator)


@pytest.mark.parametrize(
    "kind",
    [Part, *SOCKETS, Network, Client, LocalData, Forward, Setting, Clients, Model, ServerTools],
)
def test_the_page_names_every_member(kind: type) -> None:
    hooks = {n for n, value in vars(kind).items() if isfunction(value) or hasattr(value, "__get__")}
    members = {n for n in hooks | kind.__annotations__.keys() if not n.startswith("_")}
    prose = re.sub(r"```.+?```", "", PAGE, flags=re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", prose))))
    assert members
    assert members <= named


@pytest.fixture
def loss() -> Any:
    example = re.search(r"```python\n(.+?)```", PAGE, re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {"__name__": "prototypes"}
    exec(example[1], names)
    part = names["ToPrototypes"](2.0)
    part.setup(Setting(0, 1, 3, 2, 2, 2, Clients.of(torch.ones(2, 3)), Model({})))
    return part


def sent(sums: list[list[float]], counts: list[float]) -> PartUpdate:
    return PartUpdate(0, 1, {}, {"sums": torch.tensor(sums), "counts": torch.tensor(counts)})


def test_in_the_example_a_class_without_samples_is_unknown_and_an_absent_one_stays(
    loss: Any,
) -> None:
    assert loss.broadcast(1)["known"].tolist() == [0, 0, 0]
    loss.aggregate([sent([[2.0, 4.0], [0, 0], [0, 0]], [2, 0, 0])])
    loss.aggregate([sent([[0.0, 0.0], [3, 3], [0, 0]], [0, 3, 0])])
    message = loss.broadcast(3)
    assert message["prototypes"].tolist() == [[1, 2], [1, 1], [0, 0]]
    assert message["known"].tolist() == [1, 1, 0]
    loss.begin(None, SimpleNamespace(extras=message), {})
    z, logits = torch.tensor([[1.0, 4.0], [5.0, 5.0]]), torch.zeros(2, 3)
    found = loss(Forward(z, logits, torch.tensor([0, 2])))
    assert found.item() == pytest.approx(torch.tensor(3.0).log().item() + 2 * 2 / 2)
