"""What the presets of a sweep's methods set besides their parts, said before the sweep begins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fedexp.cli.option_folders import option_folders
from fedexp.config.keys import flatten, override_key

_GROUP = "algorithm"
_EXPERIMENT = ("optimizer", "schedule", "local", "clients")
"""Config groups and keys that belong to the experiment and not to a part."""


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
    found |= flatten(preset)
    return {key: value for key, value in found.items() if key.partition(".")[0] in _EXPERIMENT}
