"""Configs of the default tree, composed as Hydra composes a job's."""

from collections.abc import Sequence

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig

from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize


def compose(overrides: Sequence[str]) -> DictConfig:
    """The whole config of a job, with Hydra's own node."""
    with initialize(config_folder()):
        loader = GlobalHydra.instance().config_loader()
        return loader.load_configuration("config", list(overrides), RunMode.RUN)
