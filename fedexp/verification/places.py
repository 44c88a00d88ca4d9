"""Keys of a config that name files or folders, which each machine has at another place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedexp.config.keys import selected
from fedexp.deployment.flower.own_config import PLACES as OF_DATA

DATA = tuple(f"data.{key}" for key in OF_DATA)
"""Keys that name a file or a folder, whatever their value is."""

KEYS = (
    *DATA,
    *("data.name", "model.name", "model.weights", "model.start_from"),
    *("system.file", "availability.file"),
)
"""``DATA``, and keys that may also have the name of something else, such as ``phones``."""

_ENDINGS = (".csv", ".json", ".parquet", ".pt", ".pth")


def places(config: Mapping[str, Any]) -> list[str]:
    """Those of ``KEYS`` that name a file or a folder in this config."""
    values = {key: selected(config, key) for key in KEYS}
    return [key for key, value in values.items() if value and (key in DATA or _is_path(str(value)))]


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~")) or Path(text).suffix in _ENDINGS


def unread(config: Mapping[str, Any], here: Mapping[str, str]) -> list[str]:
    """A line for each place in ``here``, key -> path, whose key has no value in this config."""
    without = [key for key in here if selected(config, key) is None]
    return [f"{key}={here[key]} has no effect: this run has no {key}" for key in without]


def moved(config: Mapping[str, Any], here: Mapping[str, str]) -> dict[str, Any]:
    """The config with the values of ``here``, key -> path, where it has another value."""
    found = dict(config)
    for key, path in here.items():
        group, name = key.split(".")
        if selected(config, key) is not None:
            found[group] = {**found[group], name: path}
    return found
