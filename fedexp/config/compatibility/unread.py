"""Options that were typed on the command line and that nothing reads.

A class or function that a config names as ``_target_`` declares in ``unread_if`` which of its
arguments have no effect, and with which values of other keys. ``SETTINGS`` has the same table for
keys that belong to no target. What follows from several components is in the ``unread`` of a
``Declaration``. A run compares all these keys with the overrides that the user typed, and logs one
line for each typed key that has no effect. Values of presets are not compared.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from logging import Logger
from types import MappingProxyType
from typing import Any, TypeVar

from fedexp.config.build import locate
from fedexp.config.compatibility.declaration import Declaration, UnreadWith
from fedexp.config.keys import is_below, nodes, override_key, selected

_Function = TypeVar("_Function", bound=Callable[..., Any])


def given(value: object) -> bool:
    """Whether a value is set: not null."""
    return value is not None


def declares_unread(table: Mapping[str, UnreadWith]) -> Callable[[_Function], _Function]:
    """A decorator that gives a function the attribute ``unread_if``."""

    def declared(function: _Function) -> _Function:
        vars(function)["unread_if"] = MappingProxyType(table)
        return function

    return declared


SETTINGS: Mapping[str, UnreadWith] = MappingProxyType(
    {
        "local.epochs": {"local.steps": given},
        "model.lora.alpha": {"model.lora.rank": (None,)},
        "model.lora.targets": {"model.lora.rank": (None,)},
        "partition.shift.strength": {"partition.shift.kinds": ([],)},
        "system.late": {"system.deadline": (None,)},
        "checkpoint.every": {"checkpoint.keep": (0,)},
        **{
            f"tracking.wandb.{name}": {"tracking.wandb.mode": ("offline", "disabled")}
            for name in ("init_timeout", "finish_timeout")
        },
        **{
            f"tracking.wandb.{name}": {"tracking.wandb.mode": ("disabled",)}
            for name in (
                *("project", "entity", "group", "job_type", "name", "notes", "tags", "dir"),
                "artifact",
            )
        },
    }
)
"""Key of a setting -> the keys and values with which it has no effect."""


def unread_keys(
    values: Mapping[str, Any], declarations: Sequence[Declaration] = ()
) -> dict[str, str]:
    """The keys that have no effect in this run: key -> why, such as ``with faults.straggle=0``.

    A key stands for itself and for all keys below it.

    Args:
        values: the run's config as nested dictionaries.
        declarations: the declarations of all components.
    """
    found = dict(_unread(SETTINGS, "", values))
    for key, node in nodes(values):
        table = getattr(locate(f"{key}._target_", node["_target_"]), "unread_if", {})
        found |= _unread(table, key, values)
    for each in declarations:
        found |= each.unread
    read = [key for each in declarations for key in each.reads]
    return {part: why for key, why in found.items() for part in _parts_without(read, key, values)}


def warn_of_unread(unread: Mapping[str, str], overrides: Sequence[str], logger: Logger) -> None:
    """Log one line for each typed override that has no effect.

    Args:
        unread: a result of ``unread_keys``.
        overrides: the overrides on the command line of this job.
    """
    typed = {_place(each): each for each in overrides if not each.startswith("~")}
    for place, override in typed.items():
        for key, why in unread.items():
            if is_below(place, [key]):
                logger.warning("%s: has no effect %s", override.lstrip("+"), why)
                break


def _parts_without(read: Sequence[str], key: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield ``key``, or the unread keys below it if something there is in ``read``."""
    if is_below(key, read):
        return
    below = selected(values, key)
    if isinstance(below, Mapping) and any(is_below(each, [key]) for each in read):
        for name in below:
            yield from _parts_without(read, f"{key}.{name}", values)
    else:
        yield key


def _place(override: str) -> str:
    """The key that an override sets: ``download`` for ``compression@download=topk``."""
    return override_key(override).rpartition("@")[2]


def _unread(
    table: Mapping[str, UnreadWith], prefix: str, values: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """The keys of the ``table`` whose condition holds, with the key and value that make it hold."""
    for name, conditions in table.items():
        for other, unread_with in conditions.items():
            place = other if "." in other else f"{prefix}.{other}"
            value = selected(values, place)
            if unread_with(value) if callable(unread_with) else value in unread_with:
                yield f"{prefix}.{name}".lstrip("."), f"with {place}={_written(value)}"
                break


def _written(value: object) -> str:
    """A value as it is written in YAML."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)
