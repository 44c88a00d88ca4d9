"""The config of a run, composed from Python as the command line composes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from omegaconf import DictConfig, open_dict

from fedexp.cli import hydra_api
from fedexp.cli.command import config_folder
from fedexp.cli.hydra_errors import one_line
from fedexp.config.composed import to_dict


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """The unchecked config of a run, with Hydra's own keys; see ``fedexp.run``.

    Raises InputError for an unknown key or option.
    """
    found = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    with one_line(overrides, Path(config_folder())), hydra_api.initialize(config_folder()):
        return hydra.compose("config", [*found, *overrides], return_hydra_config=True)


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The unchecked config of a run as a dictionary, without Hydra's own keys; see ``compose``."""
    config = compose(overrides)
    with open_dict(config):
        del config["hydra"]
    return to_dict(config, overrides)
