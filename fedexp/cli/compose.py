"""The config of a run, composed from Python as the command line composes it."""

from collections.abc import Sequence
from pathlib import Path

import hydra
from omegaconf import DictConfig

from fedexp.cli import hydra_api
from fedexp.cli.command import config_folder
from fedexp.cli.hydra_errors import one_line


def compose(overrides: Sequence[str], config_dir: str | Path | None = None) -> DictConfig:
    """The unchecked config of a run, with Hydra's own keys; see ``fedexp.run``.

    Raises:
        InputError: the overrides cannot be composed.
    """
    found = [f"hydra.searchpath=[file://{Path(config_dir).resolve()}]"] if config_dir else []
    with one_line(overrides, Path(config_folder())), hydra_api.initialize(config_folder()):
        return hydra.compose("config", [*found, *overrides], return_hydra_config=True)
