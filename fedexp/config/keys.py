"""Keys of a config: keys of overrides, flat keys, and the differences between two configs.

The command line uses this module before the job begins, so it imports nothing slow.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

RECORDS = ("tracking", "checkpoint", "limits", "resume")
"""Keys for records, checkpoints and the end of a run; they never change a round's results."""

COSTS = ("engine", "clients.ram_gib", "data.cache")
"""Keys for speed and storage; they change results at most by rounding, but for ``TRAINING``."""

TRAINING = ("engine.options", "engine.callbacks")
"""Keys of an engine that change the training, such as accumulated gradients."""

_ABSENT = object()


def override_key(override: str) -> str:
    """The key of an override such as ``+partition.beta=0.1``."""
    return override.lstrip("+~").partition("=")[0]


def is_below(key: str, groups: Iterable[str]) -> bool:
    """Whether a key such as ``tracking.wandb.mode`` equals or lies below one of ``groups``."""
    return any(key == each or key.startswith(f"{each}.") for each in groups)


def may_change(key: str) -> bool:
    """Whether a resumed run may change this key.

    It may change ``rounds``, keys in or below RECORDS, and costs.
    """
    return is_below(key, ("rounds", *RECORDS)) or is_cost(key)


def is_cost(key: str) -> bool:
    """Whether a key is for speed and storage only."""
    return is_below(key, COSTS) and not is_below(key, TRAINING)


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one dictionary; the keys of each level are joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nodes(values: Any, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Key and content of each group with a ``_target_``, at any depth, such as "measure.angles"."""
    if isinstance(values, Mapping):
        if "_target_" in values:
            yield key, values
        inner: Iterable[tuple[object, Any]] = values.items()
    else:
        inner = enumerate(values) if isinstance(values, list | tuple) else ()
    for name, value in inner:
        yield from nodes(value, f"{key}.{name}" if key else str(name))


def selected(config: Mapping[str, Any], key: str) -> Any:
    """The value of a key such as ``local.epochs`` in a nested config; None if it is absent."""
    found: Any = config
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Each changed key for which ``may_change`` is false, with its old value: ``key=value``.

    An empty list counts as an absent key, since an engine without callbacks may lack the list.
    """
    before, now = ({k: v for k, v in flatten(each).items() if v != []} for each in (old, new))
    return [
        f"{key}={before.get(key, '(nothing)')}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key, _ABSENT) != now.get(key, _ABSENT) and not may_change(key)
    ]
