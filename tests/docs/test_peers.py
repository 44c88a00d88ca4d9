"""The list of other projects' methods: each option of ours exists and has these settings."""

import re
from pathlib import Path
from typing import Any

import hydra
import pytest
from generate.options import GROUPS, options
from generate.peers import common_defaults, methods_table, own_defaults, projects
from omegaconf import DictConfig, OmegaConf

from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize

PAGES = Path(__file__).parents[2] / "docs" / "coming_from"
SIZES = {"fl_bench": 46, "pfllib": 40, "fluke": 39}
"""Methods in the projects' own lists; PFLlib's has ``Local`` beside its 39."""

LINES = sorted({each.ours for p in projects().values() for each in p.methods if each.ours})
FEW = ["algorithm=fedgc", "algorithm=fedpcl", "algorithm=fedamp", "algorithm=fednova"]
"""Lines whose options have interpolations, or choose further options, also of one group twice."""


def composed(line: str) -> DictConfig:
    with initialize(config_folder()):
        return hydra.compose("config", line.split())


def at(config: DictConfig, key: str) -> Any:
    """The value of a key, with interpolations as written."""
    node: Any = OmegaConf.to_container(config, resolve=False)
    for name in key.split("."):
        node = node[name]
    return node


def read(written: str) -> Any:
    node: Any = OmegaConf.to_container(OmegaConf.create(f"value: {written}"), resolve=False)
    return node["value"]


@pytest.mark.parametrize("project", SIZES)
def test_every_method_is_listed_once_and_is_here_or_has_a_reason(project: str) -> None:
    methods = projects()[project].methods
    assert len({each.name for each in methods}) == len(methods) == SIZES[project]
    assert [each.name for each in methods if bool(each.ours) == bool(each.missing)] == []
    assert [each.name for each in methods if each.missing and each.differs] == []


def test_a_method_that_is_said_to_be_missing_is_missing() -> None:
    here = {option.name.replace("_", "") for option in options("algorithm")}
    names = {each.name for p in projects().values() for each in p.methods if each.missing}
    assert {name for name in names if re.sub(r"\W|_", "", name.lower()) in here} == set()


def test_every_option_of_a_line_exists() -> None:
    words = {word for line in LINES for word in line.split()}
    chosen = [word.split("=") for word in words if word.split("=")[0] in GROUPS]
    assert ["aggregator", "private"] in chosen
    assert [w for w in chosen if w[1] not in {each.name for each in options(w[0])}] == []


@pytest.mark.parametrize(
    "line",
    [*FEW, *(pytest.param(line, marks=pytest.mark.slow) for line in LINES if line not in FEW)],
)
def test_the_settings_of_a_line_are_those_of_its_config(line: str) -> None:
    config = composed(line)
    for key, written in own_defaults(line).items():
        assert at(config, key) == read(written), key


def test_common_settings_are_those_of_the_default_config() -> None:
    config = composed("algorithm=fedavg")
    for project in projects().values():
        assert len(project.keys) >= 3
        for key, written in common_defaults(project.keys).items():
            assert at(config, key) == read(written)


def test_a_table_has_the_settings_of_both() -> None:
    lines = methods_table("fl_bench").splitlines()
    (row,) = (line for line in lines if line.startswith("| fedprox |"))
    assert row == "| fedprox | `mu=0.01` | `algorithm=fedprox` | `regularizer.mu=0.01` |  |"
    (row,) = (line for line in lines if line.startswith("| all methods |"))
    assert "`local_epoch=5`" in row
    assert "`local.epochs=5`" in row
    assert len(lines) == 3 + SIZES["fl_bench"]


@pytest.mark.parametrize(
    ("project", "name", "said"),
    [
        ("fl_bench", "fedavgm", "Nesterov"),
        ("pfllib", "FedLC", "all clients together"),
        ("pfllib", "FedGen", "neither distillation"),
        ("pfllib", "FML", "local.grad_clip=10"),
        ("fluke", "FedAVGM", "first round"),
        ("fluke", "APFL", "constant"),
        ("fluke", "CCVR", "all clients"),
        ("fluke", "FedNH", "starts at 1"),
        ("fluke", "FedRep", "personalization.head_epochs"),
        ("fluke", "PerFedAVG", "the weights after the first one"),
    ],
)
def test_a_difference_in_the_code_is_said(project: str, name: str, said: str) -> None:
    (method,) = (each for each in projects()[project].methods if each.name == name)
    assert said in method.differs


def test_flowers_numbers_have_the_names_of_its_results() -> None:
    result = pytest.importorskip("flwr.serverapp.strategy.result").Result
    named = re.findall(r"Flower: `(\w+)`", (PAGES.parent / "numbers" / "elsewhere.md").read_text())
    assert len(named) == 3
    assert set(named) <= set(result.__annotations__)


@pytest.mark.parametrize("project", SIZES)
def test_the_page_has_the_table(project: str) -> None:
    assert f"results/methods_{project}.part" in (PAGES / f"{project}.md").read_text()
