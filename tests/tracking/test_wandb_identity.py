from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_wandb import settings

from fedexp.config.wandb_variables import COMMAND_LINE, PRESET
from fedexp.tracking.tracker import RunInfo
from fedexp.tracking.wandb_identity import identity_of, ignored_id

CHOICES = {"algorithm": "fednh", "data": "digits", "partition": "iid"}
MADE = "fednh-digits-iid-s0"


def run(folder: Path, **changes: Any) -> RunInfo:
    return RunInfo(folder, config={"seed": 0, "partition": {}}, choices=CHOICES, **changes)


def named(**changes: Any) -> Any:
    plain = {"group": None, "job_type": None, "name": None, "tags": []}
    return settings(**(plain | changes))


def test_a_sweep_puts_the_variable_before_the_name_of_each_job(tmp_path: Path) -> None:
    origins = {"name": "WANDB_NAME"}
    alone = identity_of(run(tmp_path, origins=origins), named(name="thesis"))
    assert alone.values["name"] == "thesis"
    job = identity_of(run(tmp_path, origins=origins, sweep="lr"), named(name="thesis"))
    assert job.values["name"] == f"thesis-{MADE}"
    assert job.values["group"] == "lr"
    typed = run(tmp_path, origins={"name": COMMAND_LINE}, sweep="lr")
    assert identity_of(typed, named(name="thesis")).values["name"] == "thesis"


def test_a_resumed_run_keeps_its_identity_unless_the_command_line_names_another(
    tmp_path: Path,
) -> None:
    first = run(tmp_path, sweep="lr", origins={"project": "WANDB_PROJECT"})
    identity_of(first, named(project="thesis", tags=["a"])).save(tmp_path)

    later = replace(first, resumed=True, sweep=None, overrides=["rounds=60"])
    kept = identity_of(later, named(project="other", tags=[]))
    expected = {"project": "thesis", "group": "lr", "name": MADE, "tags": ["a"]}
    assert {key: kept.values[key] for key in expected} == expected
    assert kept.origins["project"] == "kept from the first start"

    typed = replace(later, origins={"project": COMMAND_LINE})
    assert identity_of(typed, named(project="typed")).values["project"] == "typed"


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    (tmp_path / "wandb.json").write_text("[1")
    found = identity_of(run(tmp_path, resumed=True), named(project="thesis"))
    assert found.values["project"] == "thesis"


def test_wandbs_own_agent_sets_project_and_entity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SWEEP_ID", "PROJECT", "ENTITY"):
        monkeypatch.setenv(f"WANDB_{name}", f"agent's {name}")
    found = identity_of(run(tmp_path, origins={"project": COMMAND_LINE}), named(project="typed"))
    assert (found.values["project"], found.values["entity"]) == (
        "agent's PROJECT",
        "agent's ENTITY",
    )
    assert found.origins["project"] == "WANDB_PROJECT"


def test_the_line_says_what_won(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert identity_of(run(tmp_path, sweep="lr"), named()).line() is None  # nothing was chosen
    monkeypatch.setenv("WANDB_PROJECT", "other")
    origins = {"project": COMMAND_LINE, "tags": "WANDB_TAGS", "notes": PRESET}
    found = identity_of(run(tmp_path, origins=origins), named(tags=["a"], notes="why"))
    assert found.line() == (
        "W&B: mode=offline (default), project=test (command line, not WANDB_PROJECT), "
        f"name={MADE} (from the config), notes=why (preset), tags=['a'] (WANDB_TAGS)"
    )


def test_an_id_that_is_not_used_is_said(tmp_path: Path) -> None:
    def line(**changes: Any) -> str | None:
        return ignored_id(run(tmp_path, **changes), named(id="mine"), "WANDB_RUN_ID")

    assert line(run_id="mine") is None
    assert line(run_id="1234", sweep="lr") == (
        "W&B: id=mine (WANDB_RUN_ID) is ignored in a sweep, whose jobs would become one W&B run"
    )
    assert line(run_id="1234", resumed=True) == (
        "W&B: id=mine (WANDB_RUN_ID) is ignored; the resumed run keeps its id 1234"
    )
