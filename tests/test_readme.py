"""The examples in the Markdown pages: commands, code, links and paths."""

import importlib
import itertools
import json
import math
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import hydra
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from support.pages import anchor_of, blocks, paste

import fedexp
from fedexp.cli.command import config_folder
from fedexp.cli.hydra_api import initialize
from fedexp.config.schema import Config, validate
from fedexp.core.forward import Forward
from fedexp.errors import InputError
from fedexp.runtime.plan import plan

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "scripts" / "results"
PAGES = [README, *sorted(RESULTS.glob("*.md")), ROOT / "CONTRIBUTING.md"]
START = ROOT / "docs" / "start"
DATA, METHOD, METRIC, MODEL = (
    START / f"your_{name}.md" for name in ("data", "method", "metric", "model")
)
DOCS = [
    page
    for page in sorted((ROOT / "docs").rglob("*.md"))
    if page.relative_to(ROOT / "docs").parts[0] not in ("_build", "options", "results")
]
"""The pages of the site that are written by hand."""

ALL_PAGES = [*PAGES, ROOT / "conf" / "experiment" / "README.md", *DOCS]
TOP = ("conf", "docs", "fedexp", "notebooks", "scripts", "tests")
"""Folders of the repository, with which a path on a page begins."""
OWN = "--config-dir"
OF_THE_SWEEPER = ("hydra/", "hydra.", "ablate=")
"""Beginnings of words that are no overrides of a job."""
TINY = [
    *["rounds=1", "clients.count=4", "clients.per_round=2", "local.epochs=1"],
    *["measure.personal=null", "tracking.wandb.mode=disabled"],
]


def commands(page: Path) -> list[list[str]]:
    """The arguments of each ``fedexp`` command."""
    lines = "".join(blocks(page, "bash")).replace("\\\n", "").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each[1:] for each in words if each[:1] in (["fedexp"], ["fedexp-partition"])]


def jobs(arguments: list[str]) -> list[list[str]]:
    """The overrides of each job of a command, of the first seed only.

    A leaderboard's sweeper adds options for each method itself: its first method stands for all. An
    override whose value is a variable of the shell is left out.
    """
    overrides = [
        each
        for each in arguments
        if each.startswith("~") or ("=" in each and not each.startswith(OF_THE_SWEEPER))
    ]
    overrides = [each for each in overrides if not re.search(r"=\$\w", each)]
    choices = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        if each.is_sweep_override()
        else [each.input_line]
        for each in OverridesParser.create().parse_overrides(overrides)
    ]
    first_only: tuple[str, ...] = ("seed=",)
    if any(each.startswith("experiment=leaderboard/") for each in arguments):
        first_only = ("seed=", "algorithm=")
    firsts = [each[:1] if each[0].startswith(first_only) else each for each in choices]
    return [list(job) for job in itertools.product(*firsts)]


def examples(pages: Sequence[Path]) -> list[list[str]]:
    """Every job of every command on the pages, but for those with a config folder of their own."""
    found = [
        job for page in pages for each in commands(page) if OWN not in each for job in jobs(each)
    ]
    return [list(job) for job in dict.fromkeys(map(tuple, found)) if job]


def paths(page: Path) -> list[str]:
    """The paths of the repository in back-ticks, without those that have a placeholder."""
    found = re.findall(rf"`((?:{'|'.join(TOP)})/[^`\s<*]+)`", page.read_text())
    return [each for each in found if not each.endswith("...")]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_on_a_page_exist(page: Path) -> None:
    assert [each for each in paths(page) if not (ROOT / each).exists()] == []


def test_there_are_paths_on_the_pages() -> None:
    assert "fedexp/core/part.py" in paths(ROOT / "CONTRIBUTING.md")


@pytest.mark.matrix
@pytest.mark.parametrize("overrides", examples(PAGES), ids=" ".join)
def test_a_command_on_a_page_is_accepted(overrides: list[str]) -> None:
    config = composed(overrides)
    if "data.root=DIR" not in overrides:  # a placeholder
        plan(config)


@pytest.mark.parametrize("overrides", examples(DOCS), ids=" ".join)
def test_a_command_of_the_site_is_composed(overrides: list[str]) -> None:
    """Its files, such as a user's table, are not at hand."""
    composed(overrides)


def composed(overrides: list[str]) -> Config:
    with initialize(config_folder()):
        cfg = hydra.compose("config", overrides)
    return validate(OmegaConf.to_container(cfg, resolve=True))


@pytest.fixture
def pasted(tmp_path: Path) -> Path:
    """A folder with the files on four pages of ``start``."""
    paste((DATA, METHOD, METRIC, MODEL), tmp_path)
    return tmp_path


def run_command(page: Path, folder: Path, number: int = 0) -> Path:
    """Run a command of a page in ``folder``, the first one by default; the folder of the run."""
    subprocess.run(
        [sys.executable, "-m", "fedexp.train", *commands(page)[number], *TINY, "hydra.run.dir=run"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f".{os.pathsep}{ROOT}"},
        check=True,
    )
    return folder / "run"


def test_the_loss_runs_as_its_page_says(pasted: Path) -> None:
    run = run_command(METHOD, pasted)
    assert "robust.GeneralizedCrossEntropy" in (run / ".hydra/config.yaml").read_text()
    assert (run / "summary.json").exists()


@pytest.mark.slow
def test_the_measure_runs_as_its_page_says(pasted: Path) -> None:
    summary = json.loads((run_command(METRIC, pasted) / "summary.json").read_text())
    assert summary["metrics"]["drift/step"]["final"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1], ids=["network", "classifier"])
def test_the_model_runs_as_its_page_says(pasted: Path, number: int) -> None:
    assert (run_command(MODEL, pasted, number) / "summary.json").exists()


@pytest.mark.parametrize("choice", ["data=saved", "partition=growing"])
def test_data_of_ones_own_run_as_their_page_says(
    choice: str, pasted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = np.arange(40) % 2
    for name in ("train", "test"):
        inputs = np.eye(3, dtype=np.float32)[labels]
        np.savez(pasted / f"{name}.npz", inputs=inputs, labels=labels)
    monkeypatch.chdir(pasted)
    monkeypatch.syspath_prepend(pasted)
    typed = next(each for each in commands(DATA) if choice in each and each[0] == OWN)
    run = fedexp.run([*typed[2:], *TINY, f"hydra.run.dir={pasted / 'run'}"], pasted / "conf")
    assert run.objective("global/accuracy") > 0


def test_each_client_of_the_growing_partition_has_more(
    pasted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(pasted)
    clients = importlib.import_module("growing").growing(70, 3, seed=0, factor=2.0)
    assert list(map(len, clients)) == [10, 20, 40]
    assert sorted(np.concatenate(clients)) == list(range(70))


def test_the_readme_says_in_which_rounds_models_are_scored() -> None:
    measures = OmegaConf.create(composed([]).measure)
    assert (measures["global"].every, measures.personal.every) == (1, 10)
    said = "The global model is scored after every round, the clients' own models after every tenth"
    assert said in " ".join(README.read_text().split())


def test_bash_reads_the_words_of_a_sweep_as_they_are_written() -> None:
    found = re.findall(r"`('?[\w.]+=[^`]*\)'?)`", (START / "command_line.md").read_text())
    assert len(found) >= 6
    for word in found:
        subprocess.run(["bash", "-n", "-c", f"fedexp -m {word}"], check=True)


def test_the_readme_has_the_loss_of_its_page() -> None:
    assert blocks(README, "python") == blocks(METHOD, "python")[:1]
    assert blocks(README, "yaml") == blocks(METHOD, "yaml")[:1]


@pytest.fixture
def importable(pasted: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(pasted)
    monkeypatch.delitem(sys.modules, "robust", raising=False)
    return pasted


@pytest.mark.slow
def test_the_loss_runs_in_every_engine(importable: Path) -> None:
    def loss(engine: str) -> float:
        folder = f"hydra.run.dir={importable / engine}"
        overrides = ["algorithm=fedavg", "loss=robust", *TINY, f"engine={engine}", folder]
        return fedexp.run(overrides, importable / "conf").objective("global/loss")

    serial = loss("serial")
    assert loss("trainer") == serial
    assert loss("vectorized") == pytest.approx(serial, rel=1e-4)


def test_the_loss_is_its_formula(importable: Path) -> None:
    robust = importlib.import_module("robust")
    logits = torch.tensor([[0.0, math.log(3)], [2.0, -1.0]])  # probability of class 0: 1/4, ...
    batch = Forward(torch.zeros(2, 1), logits, torch.tensor([0, 0]))
    one = Forward(batch.z[:1], logits[:1], batch.targets[:1])
    assert robust.GeneralizedCrossEntropy(0.5)(one).item() == pytest.approx((1 - 0.5) / 0.5)
    nearly = robust.GeneralizedCrossEntropy(1e-4)(batch)
    torch.testing.assert_close(nearly, F.cross_entropy(logits, batch.targets), rtol=1e-3, atol=0)


def test_the_loss_refuses_a_negative_q(importable: Path) -> None:
    with pytest.raises(InputError, match=r"loss\.q=-1"):
        fedexp.run(
            ["loss=robust", "loss.q=-1", *TINY, f"hydra.run.dir={importable / 'run'}"],
            importable / "conf",
        )


def test_the_preset_sets_its_values(importable: Path) -> None:
    own = f"hydra.searchpath=[file://{importable / 'conf'}]"
    with initialize(config_folder()):
        cfg = hydra.compose("config", [own, "experiment=skewed"])
    assert (cfg.rounds, cfg.regularizer.mu) == (50, 0.1)
    assert cfg.partition._target_.endswith("shards")


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere_in_the_repository(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.M)
    return {anchor_of(each) for each in headings}
