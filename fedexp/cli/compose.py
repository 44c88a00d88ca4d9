"""The config of a run: composed from Python as the command line composes it, and checked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from omegaconf import DictConfig, OmegaConf

from fedexp.cli import hydra_api
from fedexp.cli.hydra_errors import one_line
from fedexp.cli.option_folders import config_folder, option_folders, search_path
from fedexp.cli.presets import check_parts
from fedexp.cli.quoting import with_home
from fedexp.config.composed import checked, to_dict, without_strays
from fedexp.config.launch import Launch
from fedexp.config.option_files import named_in_errors
from fedexp.config.schema import Config
from fedexp.config.wandb_variables import origins

_REMEMBERED: dict[object, Checked] = {}
"""The last config that ``checked_once`` has checked, by all that the config depends on."""


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """The unchecked config of a run, with Hydra's own keys; ``config_dir`` has the user's options.

    Raises InputError for an unknown key or option.
    """
    _REMEMBERED.clear()  # files of options may have changed since the last time
    found = search_path(config_dir)
    with one_line(overrides, config_dir), hydra_api.initialize(config_folder()):
        typed = with_home(overrides)
        return hydra.compose("config", [*found, *typed], return_hydra_config=True)


class Composed(NamedTuple):
    """The config of a run, without Hydra's own keys.

    Attributes:
        config: the config as nested dictionaries.
        choices: config group -> chosen option.
    """

    config: dict[str, Any]
    choices: dict[str, str | None]


def composed(overrides: Sequence[str], config_dir: str | Path | None = None) -> Composed:
    """The unchecked config of a run; see ``compose``. Raises InputError."""
    cfg = compose(overrides, config_dir)
    folders = option_folders(cfg.hydra.runtime.config_sources)
    config = without_strays(to_dict(without_hydra(cfg)), overrides, folders)
    return Composed(config, _own_choices(cfg.hydra))


def composed_and_checked(overrides: Sequence[str]) -> Composed:
    """The checked config of a run, as ``run.json`` has it. Raises InputError."""
    cfg = compose(overrides)
    found = checked_config(cfg, cfg.hydra, overrides)
    return Composed(found.config.model_dump(mode="json"), dict(found.launch.choices))


@dataclass(frozen=True)
class Checked:
    """A checked config, and how it was composed.

    Attributes:
        config: the checked config.
        launch: the overrides and the chosen options; the sweep is still unknown.
        folders: folder with options -> its provider, in Hydra's order.
    """

    config: Config
    launch: Launch
    folders: Mapping[Path, str]

    def named_in_errors(self) -> AbstractContextManager[None]:
        """Begin an error about an option's class with the option's file; see ``option_files``."""
        return named_in_errors(self.launch.choices, self.folders, self.launch.overrides)


def checked_config(cfg: DictConfig, of_hydra: Any, overrides: Sequence[str]) -> Checked:
    """Check a composed config. Raises InputError.

    Args:
        cfg: the composed config, with or without Hydra's own keys.
        of_hydra: Hydra's own keys.
        overrides: the overrides on the command line.
    """
    own, choices = without_hydra(cfg), _own_choices(of_hydra)
    folders = option_folders(of_hydra.runtime.config_sources)
    check_parts(of_hydra.runtime, overrides)
    with named_in_errors(choices, folders, overrides):
        config = checked(own, overrides, folders)
    launch = Launch(list(overrides), choices, None, origins(own, overrides))
    return Checked(config, launch, folders)


def checked_once(cfg: DictConfig, of_hydra: Any) -> Checked:
    """The same for a command that runs one job; it remembers the last result.

    The config is checked when the folder is chosen, when the folder is protected, and in the job.
    """
    overrides = hydra_api.typed_overrides(of_hydra)
    key = (*overrides, *os.environ.items())
    if key not in _REMEMBERED:
        found = checked_config(cfg, of_hydra, overrides)
        _REMEMBERED.clear()
        _REMEMBERED[key] = found
    return _REMEMBERED[key]


def without_hydra(cfg: DictConfig) -> DictConfig:
    """The config without Hydra's own keys."""
    return OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])


def _own_choices(of_hydra: Any) -> dict[str, str | None]:
    """Config group -> chosen option, without Hydra's groups."""
    choices = of_hydra.runtime.choices
    return {group: option for group, option in choices.items() if not group.startswith("hydra/")}
