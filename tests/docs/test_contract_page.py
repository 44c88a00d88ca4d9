"""The page with the contract of a part names all of it."""

import re
from inspect import isfunction
from pathlib import Path

import pytest

from fedexp.core.client_protocol import Client, LocalData
from fedexp.core.forward import Forward
from fedexp.core.part import Clients, Model, Part, ServerTools, Setting
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
