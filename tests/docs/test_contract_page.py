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
SECTIONS = dict(part.split("\n", 1) for part in PAGE.split("\n## "))
OF_EVERY_PART, OF_ONE_SOCKET = SECTIONS["Rare hooks"].split("Of one socket:")
SOCKETS = {
    Head: "head",
    Loss: "loss",
    Regularizer: "regularizer",
    LocalGradient: "gradient",
    Personalization: "personalization",
    Sampler: "sampler",
    Aggregator: "aggregator",
}


def rows(socket: str) -> str:
    """A socket's rows in the first table and in that of the members of one socket."""
    tables = SECTIONS["# The contract of a part"] + OF_ONE_SOCKET
    return "\n".join(re.findall(rf"^\| `?{socket}`? \|.+(?:\n\| \|.+)*", tables, re.MULTILINE))


PLACES = {
    Part: "".join(SECTIONS[title] for title in ("One round", "Five rules", "What a class declares"))
    + OF_EVERY_PART,
    **{kind: rows(socket) for kind, socket in SOCKETS.items()},
    Network: rows("loss"),
    **dict.fromkeys((Client, LocalData), SECTIONS["The client"]),
    Forward: SECTIONS["The batch"],
    **dict.fromkeys((Setting, Clients, Model, ServerTools), SECTIONS["The setting"]),
}
"""Where the page describes the members of each class."""


@pytest.mark.parametrize("kind", PLACES)
def test_the_page_names_every_member(kind: type) -> None:
    hooks = {n for n, value in vars(kind).items() if isfunction(value) or hasattr(value, "__get__")}
    members = {n for n in hooks | kind.__annotations__.keys() if not n.startswith("_")}
    if kind in SOCKETS:
        members -= vars(Part).keys()  # an override is described with the hooks of every part
    prose = re.sub(r"```.+?```", "", PLACES[kind], flags=re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", prose))))
    assert members
    assert members <= named
