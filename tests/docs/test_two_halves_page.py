"""The files of the page about a method with two halves run exactly as they stand there."""

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.pages import blocks, forget, paste

import fedexp
from fedexp.cli.compose import composed
from fedexp.cli.export import main as export

PAGE = Path(__file__).parents[2] / "docs/start/two_halves.md"
SHORT = [
    *["algorithm=prototypes", "rounds=2", "clients.count=4", "clients.per_round=3"],
    *["data.subset=300", "local.epochs=1", "engine.threads=1", "tracking.wandb.mode=disabled"],
]
MODULES = ("prototypes", "prior", "test_prototypes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's folder, in which the commands are typed."""
    paste([PAGE], tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    forget(*MODULES)
    yield tmp_path
    forget(*MODULES)


def test_its_test_passes(folder: Path) -> None:
    own = importlib.import_module("test_prototypes")
    names = [name for name in vars(own) if name.startswith("test_")]
    assert names == ["test_by_hand", "test_the_contract"]
    for name in names:
        getattr(own, name)()


@pytest.mark.slow
def test_it_runs_in_every_engine_and_is_exported(folder: Path) -> None:
    losses = {}
    for engine in ("serial", "trainer", "vectorized"):
        words = [*SHORT, f"engine={engine}", f"hydra.run.dir={folder / engine}"]
        losses[engine] = fedexp.run(words, folder / "conf").objective("global/loss")
    assert losses["trainer"] == losses["serial"]
    assert losses["vectorized"] == pytest.approx(losses["serial"], rel=1e-4)
    names = {"classes.json": ""}
    export(["serial", "--to", "model.pt2"])
    program = torch.export.load("model.pt2", extra_files=names).module()
    assert program(torch.zeros(2, 1, 8, 8)).shape == (2, len(json.loads(names["classes.json"])))


def test_its_search_space_names_keys_of_its_parts(folder: Path) -> None:
    config, choices = composed(["search=prototypes"], folder / "conf")
    assert choices["algorithm"] == "prototypes"
    assert config["loss"]["weight"] == 1.0
    assert config["objective"] == "validation/accuracy"


@pytest.mark.slow
def test_its_commands_have_words_that_exist(folder: Path) -> None:
    lines = "".join(blocks(PAGE, "bash")).splitlines()
    words = [word for line in lines for word in line.split("#")[0].split()]
    pairs = [each.partition("=")[::2] for each in words if re.fullmatch(r"[a-z_.]+=\S+", each)]
    assert pairs
    swept = ["ablate", "hydra/sweeper", "hydra.sweep.dir", "hydra.sweeper.n_trials", "search"]
    for key, value in pairs:
        if key not in swept:
            composed(["algorithm=prototypes", f"{key}={value.split(',')[0]}"], folder / "conf")
