"""``conf/experiment/README.md``: its commands compose, and run a tiny round."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from support.federations import compose

import fedexp
from fedexp.cli.command import config_folder
from fedexp.reporting.papers.sweep import TableSweep, table_presets

CONF = Path(config_folder())
README = (CONF / "experiment" / "README.md").read_text()
TABLES = [name for name, _ in table_presets([CONF])]
COMMANDS = re.findall(r"\| `(fedexp(?:-partition)? [^`]*)` \|$", README, flags=re.M)


def jobs(command: str) -> list[list[str]]:
    """The overrides of every job of the command, as ``-m`` makes them."""
    words = [each for each in shlex.split(command)[1:] if each != "-m"]
    cells = [each for each in words if each.startswith("hydra.sweeper.cells=")]
    typed = {
        each.get_key_element(): list(each.sweep_string_iterator())
        if each.is_sweep_override()
        else [each.get_value_element_as_str()]
        for each in OverridesParser.create().parse_overrides(words)
        if each.input_line not in cells
    }
    (name,) = typed.get("experiment", [""])
    if name not in TABLES:
        return TableSweep("", [typed]).jobs()
    sweeper = preset(name)["hydra"]["sweeper"]
    table = TableSweep.read(name, sweeper["params"], sweeper.get("parts", []))
    for each in cells:
        table = table.only(yaml.safe_load(each.partition("=")[2]))
    return table.with_typed(
        {key: each for key, each in typed.items() if key != "experiment"}
    ).jobs()


def preset(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / "experiment" / f"{name}.yaml").read_text())
    return found


def test_the_page_has_every_table_once() -> None:
    named = re.findall(r"`fedexp -m experiment=([\w/]+)`", README)
    assert sorted(named) == sorted([*TABLES, "TABLE"])  # the page's first paragraph


def test_a_row_is_one_command() -> None:
    rows = [line for line in README.splitlines() if re.match(r"\| (Table|Figure|abl|var)", line)]
    others = [row for row in rows if "`fedexp" not in row]
    assert len(rows) == len(COMMANDS) + len(others)
    assert all("notebooks/" in row or "scripts/" in row for row in others)


@pytest.mark.matrix
@pytest.mark.parametrize("command", COMMANDS)
def test_the_last_job_of_each_command_composes(command: str) -> None:
    compose(*jobs(command)[-1])


TINY = ["rounds=1", "clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=200"]
TINY += ["data=digits", "model=mlp", "tracking.wandb.mode=disabled", "engine.device=cpu"]
TINY += ["partition=dirichlet", "partition.min_size=1"]
TINY += ["measure.global.targets=[]"]
TINY += ["objective=train/loss"]  # digits have no measure of a preset's own data, such as fewshot
OF_MEASURES = {
    "loss_surface": ["measure.loss_surface.rounds=[1]", "measure.loss_surface.points=3"],
    "features": ["measure.features.classes=[]"],
    "membership": ["measure.membership.shadows=4", "measure.membership.epochs=1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("fedexp ")])
def test_the_first_job_of_each_command_runs_a_tiny_round(command: str, tmp_path: Path) -> None:
    job = jobs(command)[0]
    added = [size for name, of in OF_MEASURES.items() if f"+measure={name}" in job for size in of]
    replaced = {each.partition("=")[0] for each in [*TINY, *added]} | {"measure.prototypes.every"}
    gone = ("partition.", "model.", "data.", "measure.prototypes.zoom")
    kept = [
        each for each in job if each.partition("=")[0] not in replaced and not each.startswith(gone)
    ]
    if not re.search("leaderboard/|factorial/", command):  # their runs have no heatmaps
        added.append("measure.prototypes.every=1")
    done = fedexp.run([*kept, *TINY, *added, f"hydra.run.dir={tmp_path}"])
    assert done.summary["rounds"] == 1
