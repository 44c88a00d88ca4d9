"""The config of a run, composed from Python as the command line composes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hydra
from omegaconf import DictConfig, open_dict

from fedexp.cli import hydra_api
from fedexp.cli.hydra_errors import one_line
from fedexp.cli.option_folders import config_folder, option_folders, search_path
from fedexp.cli.quoting import with_home
from fedexp.config.composed import to_dict


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """The unchecked config of a run, with Hydra's own keys; ``config_dir`` has the user's options.

    Raises InputError for an unknown key or option.
    """
    found = search_path(config_dir)
    with one_line(overrides, config_dir), hydra_api.initialize(config_folder()):
        typed = with_home(overrides)
        return hydra.compose("config", [*found, *typed], return_hydra_config=True)


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
