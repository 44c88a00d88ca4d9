"""What the preset of a method sets: its parts must be there; what it sets besides is said."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.cli.option_folders import option_folders
from fedexp.config.composed import option_values
from fedexp.config.keys import flatten, override_key
from fedexp.errors import InputError

_GROUP = "algorithm"
_EXPERIMENT = ("optimizer", "schedule", "local", "clients")
"""Config groups and keys that belong to the experiment and not to a part."""


def check_parts(runtime: Any, overrides: Sequence[str]) -> None:
    """Raise InputError if another preset replaces a part of the typed method by another class.

    A protocol such as ``fednh`` has an aggregator, with which FedAvgM would be FedAvg.

    Args:
        runtime: ``hydra.runtime``, with the chosen options and the folders of options.
        overrides: what is typed; a part that is typed, too, may be any.
    """
    typed, choices = set(map(override_key, overrides)), runtime.choices
    folders = list(option_folders(runtime.config_sources))
    parts = _settings(str(choices[_GROUP]), folders) if _GROUP in typed else {}
    for group in sorted(parts.keys() & choices.keys() - typed - {*_EXPERIMENT}):
        own, chosen = parts[group], choices[group]
        one, other = (option_values(group, each, folders).get("_target_") for each in (own, chosen))
        if one != other:
            raise InputError(
                f"{_GROUP}={choices[_GROUP]}: its {group}={own} is replaced by {group}={chosen} of "
                f"the experiment; type {group}={own} to keep it, or {group}={chosen}"
            )


def preset_settings(configs: Iterable[tuple[DictConfig, Sequence[str]]]) -> str:
    """A line such as ``presets set besides their parts: fednh local.grad_clip=10``; may be empty.

    Args:
        configs: the config of each job, with Hydra's node, and the job's overrides. What is typed
            there, or what another preset has replaced, is left out.
    """
    found = {
        str(cfg.hydra.runtime.choices[_GROUP]): words
        for cfg, typed in configs
        if (words := list(_in_effect(cfg, set(map(override_key, typed)))))
    }
    told = "; ".join(f"{method} {' '.join(words)}" for method, words in found.items())
    return f"presets set besides their parts: {told}" if told else ""


def _in_effect(cfg: DictConfig, typed: set[str]) -> Iterator[str]:
    choices = cfg.hydra.runtime.choices
    folders = list(option_folders(cfg.hydra.runtime.config_sources))
    for key, value in _settings(str(choices[_GROUP]), folders).items():
        if key.partition(".")[0] not in _EXPERIMENT:
            continue
        own = choices[key] if key in choices else OmegaConf.select(cfg, key)
        if key not in typed and own == value:
            yield f"{key}={value}"


def _settings(name: str, folders: Sequence[Path]) -> dict[str, Any]:
    """Key or group -> what the preset of this name, or a preset that it extends, sets there."""
    files = (folder / _GROUP / f"{name}.yaml" for folder in folders)
    path = next((each for each in files if each.is_file()), None)
    if path is None:
        return {}
    preset: Any = OmegaConf.to_container(OmegaConf.load(path)) or {}
    found: dict[str, Any] = {}
    for entry in preset.pop("defaults", []):
        if isinstance(entry, str):
            found |= {} if entry == "_self_" else _settings(entry, folders)
        else:
            found |= {key.rpartition("/")[2]: option for key, option in entry.items()}
    return found | flatten(preset)
