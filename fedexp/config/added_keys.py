"""Keys that saved configs of earlier versions lack."""

from collections.abc import Mapping
from typing import Any

ADDED: Mapping[str, Any] = {
    "local.last_batch": "auto",  # earlier runs had no batch that ``auto`` would change
    **{
        f"{group}.{name}": None
        for group in ("tracking.wandb", "tracking.trackers.wandb.settings")
        for name in ("notes", "id", "dir")
    },
}
"""Key -> the value with which a run of an earlier version continues as it began."""


def with_added(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config with the keys that were added since it was saved."""
    found = dict(config)
    for key, value in ADDED.items():
        group, _, name = key.rpartition(".")
        _add(found, group.split("."), name, value)
    return found


def _add(config: dict[str, Any], groups: list[str], name: str, value: Any) -> None:
    """Set ``name`` below these groups if it is absent; copy the groups, so nothing else changes."""
    node = config
    for group in groups:
        if not isinstance(node.get(group), dict):
            return
        node[group] = dict(node[group])
        node = node[group]
    node.setdefault(name, value)
