"""Keys that saved configs of earlier versions lack, or still have."""

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


REMOVED = ("evaluation.overlap",)
"""Keys of earlier versions that changed no result."""


def with_added(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config with the keys that were added since it was saved, without the removed ones."""
    found = dict(config)
    for key, value in ADDED.items():
        _group_of(key, found).setdefault(key.rpartition(".")[2], value)
    for key in REMOVED:
        _group_of(key, found).pop(key.rpartition(".")[2], None)
    return found


def _group_of(key: str, config: dict[str, Any]) -> dict[str, Any]:
    """A copy of the group with this key, put into ``config``; an unused one if it is no group."""
    node = config
    for group in key.split(".")[:-1]:
        if not isinstance(node.get(group), dict):
            return {}
        node[group] = dict(node[group])
        node = node[group]
    return node
