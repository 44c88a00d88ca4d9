"""Configs composed as the command line does it, and federations that log nowhere."""

import copy
import functools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from pickle import dumps, loads  # tests of ranks forbid pickle.loads
from typing import Any

import hydra
import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.config.composed import checked
from fedexp.config.schema import Config
from fedexp.config.wandb_variables import DISABLED, VARIABLES
from fedexp.core.client import ClientModule
from fedexp.core.messages import Message, Tensors, Update
from fedexp.core.server import Server
from fedexp.data.federated import FederatedData
from fedexp.data.load import load_data
from fedexp.distributed.fabric import cpu_fabric
from fedexp.engines.base import Engine
from fedexp.runtime.federation import Federation
from fedexp.runtime.plan import plan

# Options that match training steps with synthetic images, and what makes them cheap.
MATCHING = [f"regularizer={each}" for each in ("trajectory", "proximal_synthetic")]
MATCHING += [f"algorithm={each}" for each in ("fedptr", "fedptr_s", "fedprox_synthetic")]
FEW_STEPS = ["regularizer.outer_steps=2", "regularizer.inner_steps=2", "regularizer.ipc=2"]

READ = ("FEDEXP_CACHE", "FEDEXP_DATA", DISABLED, *VARIABLES.values())
"""The environment variables that the config reads."""


def flatten(input_shape: tuple[int, ...]) -> nn.Flatten:
    """A backbone without parameters, for models that are all head."""
    return nn.Flatten()


def compose(*overrides: str) -> Config:
    """The checked config that these overrides give; FedAvg unless they choose a method.

    With ``head=identity`` the default model gives as many outputs as digits have classes.
    """
    if "head=identity" in overrides and not any(each.startswith("model") for each in overrides):
        overrides = (*overrides, "model.feature_dim=10")
    if not any(each.startswith(("algorithm=", "experiment=")) for each in overrides):
        overrides = ("algorithm=fedavg", *overrides)
    return copy.deepcopy(_compose(overrides, tuple(map(os.environ.get, READ))))


@functools.cache
def _compose(overrides: tuple[str, ...], variables: tuple[str | None, ...]) -> Config:
    """Composed once; ``variables`` has the values of ``READ``."""
    return checked(_composed(overrides), overrides, [Path(config_folder())])


def _composed(overrides: tuple[str, ...]) -> Any:
    """The unchecked config: of the chosen options, with the typed values put in."""
    values = [each for each in overrides if _sets_a_value(each)]
    cfg = loads(_pickled(tuple(each for each in overrides if each not in values)))
    try:
        for override in OverridesParser.create().parse_overrides(values):
            OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
    except (HydraException, OmegaConfBaseException):
        return of_options(overrides)  # raises Hydra's error
    return cfg


def _sets_a_value(override: str) -> bool:
    """Whether it is ``key=value``: it chooses no option, and neither adds nor removes a key."""
    key = override.partition("=")[0]
    return key[0] not in "+~" and "@" not in key and not Path(config_folder(), key).is_dir()


@functools.cache
def _pickled(overrides: tuple[str, ...]) -> bytes:
    return dumps(of_options(overrides))  # is read in half of the time of copy.deepcopy


@functools.cache
def of_options(overrides: tuple[str, ...]) -> DictConfig:
    """Composed by Hydra, which takes a tenth of a second."""
    with initialize(config_folder()):
        return hydra.compose("config", list(overrides))


def federate(
    *overrides: str, change: Callable[[FederatedData], object] = lambda data: None
) -> Federation:
    """A federation on the CPU; ``change`` may change the clients' data before the parts see it."""
    planned = plan(compose(*overrides))
    fabric = cpu_fabric(planned.config.engine.precision)
    data = load_data(planned.config, planned.source, fabric.device)
    change(data)
    return Federation(planned, fabric, data)


def load(*overrides: str) -> FederatedData:
    """The data of the clients on the CPU."""
    planned = plan(compose(*overrides))
    return load_data(planned.config, planned.source, torch.device("cpu"))


def weights_after(federation: Federation, rounds: int) -> Tensors:
    """The global weights after the first rounds."""
    for round in range(1, rounds + 1):
        federation.run_round(round)
    return federation.server.weights


def assert_engine_agrees(
    engine: str, words: Sequence[str], rounds: int, rounding: float = 1e-5
) -> None:
    """The global weights are those of ``engine=serial``: a Trainer's bits, a stack's rounded."""
    expected, found = (
        weights_after(federate(*words, f"engine={each}"), rounds) for each in ("serial", engine)
    )
    assert expected
    atol = 0.0 if engine == "trainer" else rounding
    torch.testing.assert_close(found, expected, atol=atol, rtol=0)


def assert_alike(one: Federation, other: Federation, rounds: int) -> None:
    """The same weights within 1e-5 and the same measurements, round after round."""
    for round in range(1, rounds + 1):
        left, right = one.run_round(round).metrics, other.run_round(round).metrics
        assert left.keys() == right.keys()
        for name, value in timeless(left).items():
            assert right[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
        for name, weight in one.server.weights.items():
            torch.testing.assert_close(other.server.weights[name], weight, atol=1e-5, rtol=1e-5)


def timeless(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics but for the time that the work took."""
    return {name: value for name, value in metrics.items() if not name.startswith("time/")}


def equal(a: Tensors, b: Tensors) -> bool:
    """Whether the two have the same names and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def take_step(server: Server, updates: Iterable[Update]) -> None:
    """Let the server take a step with these updates."""
    for update in updates:
        server.add(update)
    server.step()


def begin_client(engine: Engine, client: int, message: Message) -> ClientModule:
    """The resident module as this client at the start of local training."""
    with engine.resources.store.open(client) as state:
        return engine.begin(client, message, state)
