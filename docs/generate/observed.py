"""What methods send, keep and refuse: ``docs/observed.json``, by ``docs/observe.py``."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from generate.measured import FOLDER

FILE = FOLDER.parent / "observed.json"
REFUSERS = {
    "stacked": "engine=vectorized",
    "trainer": "engine=trainer",
    "private": "aggregator=private",
    "Flower": "",  # an own command
}
"""What may refuse a method -> the override that asks for it."""

Names = Mapping[str, list[str]]
"""Socket -> the names of its tensors."""


@dataclass(frozen=True)
class Observed:
    """What was seen in a few rounds of a method.

    Attributes:
        weights: the weights that travel: all, or the parts of the model; none if it is empty.
        down: what the server sends besides.
        up: what the clients send besides.
        client: what a client keeps between rounds; also its ``private weights`` and ``own model``.
        server: what the server keeps between rounds besides the global weights.
        refused: name in ``REFUSERS`` -> what a run says; empty if it runs.
    """

    weights: list[str]
    down: Names
    up: Names
    client: Names
    server: Names
    refused: Mapping[str, str]


def observed(name: str) -> Observed | None:
    """What was seen of this preset; None if it was not observed yet."""
    return Observed(**_stored()[name]) if name in _stored() else None


@cache
def _stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    return found
