"""Every preset differs from FedAvg as it is, or its file says where or when."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml
from support.federations import FEW_STEPS, compose, federate
from torch import Tensor

from fedexp.cli.command import config_folder
from fedexp.config.keys import flatten, is_below
from fedexp.config.schema import Config

PRESETS = Path(config_folder(), "algorithm")
NAMES = sorted(path.stem for path in PRESETS.glob("*.yaml") if path.stem != "fedavg")
FIRST = "first round is FedAvg's"
GLOBAL = "global model is FedAvg's"
LIMIT = 1e-6
"""Differences up to this share are rounding."""

ROUNDS = 3
SMALL = (
    *("clients.count=8", "clients.per_round=4", "data.subset=400", "partition.beta=0.1"),
    *("partition.min_size=8", "local.epochs=1", "local.batch_size=16", f"rounds={ROUNDS}"),
    *("model.hidden=[16]", "model.feature_dim=10", "measure.personal.every=1"),
    *("measure.prototypes=null", "measure.partition=null", "measure.angles=null"),
)
BATCH_NORM = ("model.batch_norm=true", "local.batch_size=1000")
OWN = {
    "fedap": BATCH_NORM,
    "fedbn": BATCH_NORM,
    "silobn": BATCH_NORM,
    "fedcda": ("aggregator.warmup=1",),  # as many rounds are FedAvg's
    **dict.fromkeys(("fedptr", "fedptr_s", "fedprox_synthetic"), tuple(FEW_STEPS)),
}
"""What a preset needs to work here; FedAvg gets what is not the preset's own."""


def recipe(config: Config) -> list[str]:
    """What a preset sets besides its idea: the optimizer, clipping and equal weights of clients."""
    optimizer = config.optimizer.model_dump()
    found = [f"optimizer.{key}={optimizer[key]}" for key in ("lr", "momentum")]
    clip = config.local.grad_clip
    found += [f"local.grad_clip={'null' if clip is None else clip}"]
    is_uniform = config.aggregator.get("weighting") == "uniform"
    return [*found, *(["aggregator=uniform"] if is_uniform else [])]


def recipe_in(preset: str) -> dict[str, Any]:
    """The overrides in a preset's file that are its ``recipe``."""
    node = yaml.safe_load((PRESETS / f"{preset}.yaml").read_text()) or {}
    groups = {}
    for entry in node.pop("defaults", []):
        groups |= entry if isinstance(entry, dict) else {}
    options = {key.rpartition("/")[2]: option for key, option in groups.items()}
    found = {**options, **flatten(node)}
    if found.get("aggregator.weighting") == "uniform":
        found["aggregator"] = "uniform"
    if found.get("aggregator") != "uniform":
        found.pop("aggregator", None)
    own = ("optimizer", "schedule", "local", "aggregator")
    found = {key: value for key, value in found.items() if is_below(key, own)}
    return {key: v for key, v in found.items() if not key.startswith("aggregator.")}


class Round(NamedTuple):
    """The global weights after a round, and what they and the personal models score."""

    weights: dict[str, Tensor]
    loss: float | None
    personal: dict[str, float]


@functools.cache
def history(*overrides: str) -> list[Round]:
    federation, found = federate(*SMALL, *overrides), []
    for round in range(1, ROUNDS + 1):
        metrics = federation.run_round(round).metrics
        weights = {name: value.clone() for name, value in federation.server.weights.items()}
        personal = {n: v for n, v in metrics.items() if n.startswith("personal/")}
        found.append(Round(weights, metrics.get("global/loss"), personal))
    return found


def other_model(one: Round, other: Round) -> bool:
    """Whether the global models have other weights, or differ by more than rounding."""
    if one.weights.keys() != other.weights.keys():
        return True
    pairs = [(one.weights[name].float(), w.float()) for name, w in other.weights.items()]
    if None not in (one.loss, other.loss):  # a head may compute what the server does not send
        pairs.append((torch.tensor(one.loss), torch.tensor(other.loss)))
    return any((a - b).norm() > LIMIT * b.norm() for a, b in pairs)


def test_each_method_of_the_leaderboard_with_more_than_its_idea_has_a_control() -> None:
    """``hydra.sweeper.tune.controls`` has at least what the preset sets besides its parts."""
    table = yaml.safe_load(Path(config_folder(), "experiment/leaderboard/digits.yaml").read_text())
    sweeper = table["hydra"]["sweeper"]
    controls = sweeper["tune"]["controls"]
    names = {name for part in sweeper["parts"] for name in part["algorithm"]}
    wanted = {name: found for name in sorted(names) if (found := recipe_in(name))}
    assert wanted["fednh"] == {"aggregator": "uniform", "local.grad_clip": 10}
    assert wanted["pfedme"] == {"aggregator": "uniform"}
    by_themselves = {"afl", "ifca"}  # weigh clients equally without an aggregator's option
    assert controls.keys() == wanted.keys() | by_themselves
    assert {n: own for n, own in wanted.items() if not own.items() <= controls[n].items()} == {}


@pytest.mark.matrix
@pytest.mark.parametrize("preset", NAMES)
def test_a_preset_differs_from_fedavg_with_the_same_recipe(preset: str) -> None:
    own = OWN.get(preset, ())
    words = [f"algorithm={preset}", *own]
    shared = [word for word in own if not word.startswith(("aggregator", "regularizer"))]
    control = history("algorithm=fedavg", *shared, *recipe(compose(*SMALL, *words)))
    method = history(*words)
    different = [other_model(*each) for each in zip(method, control, strict=True)]
    text = " ".join((PRESETS / f"{preset}.yaml").read_text().replace("#", " ").split())
    if GLOBAL in text:
        assert not any(different)
        assert method[-1].personal != control[-1].personal
    elif FIRST in text:
        assert not different[0]
        assert different[-1]
    else:
        assert different[0]
