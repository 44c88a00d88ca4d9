"""Modules of earlier versions and their new names, for configs that name the old ones."""

from collections.abc import Mapping
from typing import Any

MOVED: Mapping[str, str] = {}
"""Old module -> new module, for the modules that the key ``_target_`` of an option may name."""


def with_moved(node: Any) -> Any:
    """A config, or a part of one, in which no ``_target_`` names an old module."""
    if isinstance(node, list):
        return [with_moved(each) for each in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: with_moved(value) for key, value in node.items()}
    if isinstance(target := found.get("_target_"), str):
        module, _, name = target.rpartition(".")
        found["_target_"] = f"{MOVED.get(module, module)}.{name}" if module else name
    return found
