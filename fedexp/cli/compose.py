"""The config of a run, composed from Python as the command line composes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from omegaconf import DictConfig, open_dict

from fedexp.cli import hydra_api
from fedexp.cli.command import config_folder
from fedexp.cli.hydra_errors import one_line
from fedexp.cli.option_folders import option_folders
from fedexp.config.composed import to_dict


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """The unchecked config of a run, with Hydra's own keys; ``config_dir`` has the user's options.

    Raises InputError for an unknown key or option.
    """
    place = str(Path(config_dir).resolve()).replace("'", r"\'") if config_dir else ""
    found = [f"hydra.searchpath=['file://{place}']"] if config_dir else []
    with one_line(overrides, Path(config_folder())), hydra_api.initialize(config_folder()):
        return hydra.compose("config", [*found, *overrides], return_hydra_config=True)


class Composed(NamedTuple):
    """The unchecked config of a run, without Hydra's own keys.

    Attributes:
        config: the config as nested dictionaries.
        choices: config group -> chosen option.
    """

    config: dict[str, Any]
    choices: dict[str, str | None]


def composed(overrides: Sequence[str], config_dir: str | Path | None = None) -> Composed:
    """Compose the config of a run; see ``compose``. Raises InputError."""
    config = compose(overrides, config_dir)
    choices = config.hydra.runtime.choices
    folders = option_folders(config.hydra.runtime.config_sources)
    own = {group: option for group, option in choices.items() if not group.startswith("hydra/")}
    with open_dict(config):
        del config["hydra"]
    return Composed(to_dict(config, overrides, folders), own)
