"""Keys that saved configs of earlier versions lack, or still have."""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any, cast

from fedexp.config.keys import nodes, selected

ADDED: Mapping[str, Any] = {
    "engine.meeting_timeout": 120.0,
    "local.last_batch": "auto",  # earlier runs had no batch that ``auto`` would change
    "checkpoint.changed_code": "refuse",
    **{
        f"{group}.{name}": None
        for group in ("tracking.wandb", "tracking.trackers.wandb.settings")
        for name in ("notes", "id", "dir")
    },
}
"""Key -> the value with which a run of an earlier version continues as it began."""

ADDED_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "fedexp.data.readers.digits.Digits": {"split_seed": 0},
    "fedexp.measures.global_model.GlobalModel": {"first": 1},
    "fedexp.measures.validation.Validation": {"first": 1},
}
"""Class -> the same for the arguments of a part, a dataset or a measure of this class."""

REMOVED = ("evaluation.overlap",)
"""Keys of earlier versions that changed no result."""

REMOVED_GROUPS = ("evaluation", "tracking")
"""Config groups of earlier versions that had a single option; their keys are still there."""


def with_added(config: Mapping[str, Any]) -> dict[str, Any]:
    """A saved config with the keys that were added since it was saved, without the removed ones."""
    found = deepcopy(dict(config))
    for key, value in ADDED.items():
        group, _, name = key.rpartition(".")
        if isinstance(node := selected(found, group), dict):
            node.setdefault(name, value)
    for _, node in nodes(found):
        for name, value in ADDED_ARGUMENTS.get(str(node["_target_"]), {}).items():
            cast(dict[str, Any], node).setdefault(name, value)
    for key in REMOVED:
        group, _, name = key.rpartition(".")
        if isinstance(node := selected(found, group), dict):
            node.pop(name, None)
    return found
