"""Configs composed as the command line does it, and federations that log nowhere."""

from typing import Any

import hydra
from lightning.fabric import Fabric
from omegaconf import OmegaConf
from torch import nn

from fedexp.assembly import assemble
from fedexp.build import deal, plan
from fedexp.client import ClientModule
from fedexp.engines.base import Engine
from fedexp.federation import Federation
from fedexp.messages import Message
from fedexp.schema import Config, validate
from fedexp.tracking.tracker import Trackers
from fedexp.train import config_folder


def flatten(input_shape: tuple[int, ...]) -> nn.Flatten:
    """A backbone without parameters, for models that are all head."""
    return nn.Flatten()


def compose(*overrides: str) -> Config:
    """The checked config that these overrides give; FedAvg unless they choose a method."""
    if not any(each.startswith(("algorithm=", "experiment=")) for each in overrides):
        overrides = ("algorithm=fedavg", *overrides)
    with hydra.initialize_config_dir(config_folder(), version_base="1.3"):
        cfg = hydra.compose("config", list(overrides))
    values: Any = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return validate(values)


def federate(*overrides: str) -> Federation:
    """A federation on the CPU."""
    planned = plan(compose(*overrides))
    fabric = Fabric(accelerator="cpu", devices=1, precision=planned.config.engine.precision)
    data = deal(planned.config, planned.source, fabric.device)
    return assemble(planned, fabric, data, Trackers([]))


def seat(engine: Engine, client: int, message: Message) -> ClientModule:
    """The resident module as this client at the start of local training."""
    with engine.resources.store.open(client) as drawer:
        return engine.begin(client, message, drawer)
