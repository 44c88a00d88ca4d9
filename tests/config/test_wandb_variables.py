import os
from pathlib import Path
from typing import Any

import pytest

from fedexp.cli.compose import compose as compose_raw
from fedexp.cli.compose import composed
from fedexp.config.schema import Wandb, validate
from fedexp.config.wandb_variables import VARIABLES, origins
from fedexp.errors import InputError


def settings(*overrides: str) -> Wandb:
    return validate(composed(overrides).config).tracking.wandb


def test_the_order_is_command_line_preset_environment_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "from the variable")
    monkeypatch.setenv("WANDB_JOB_TYPE", "")  # an empty variable is not set
    monkeypatch.setenv("WANDB_NOTES", "from the variable")
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "own.yaml").write_text(
        "# @package _global_\ntracking: {wandb: {notes: of the preset, group: of the preset}}\n"
    )
    typed = ["experiment=own", "tracking.wandb.group=typed"]
    config = compose_raw(typed, tmp_path)
    found = config.tracking.wandb
    expected = {"group": "typed", "notes": "of the preset", "project": "from the variable"}
    expected |= {"job_type": None, "mode": "offline"}
    assert {key: found[key] for key in expected} == expected
    where = origins(config, typed)
    assert {key: where[key] for key in expected} == {
        "group": "command line",
        "notes": "preset",
        "project": "WANDB_PROJECT",
        "job_type": "default",
        "mode": "default",
    }


VALUES: dict[str, tuple[str, Any]] = {
    "mode": ("online", "online"),
    "tags": ("a,b c", ["a", "b c"]),
    "dir": ("scratch", Path("scratch")),
    "init_timeout": ("7", 7.0),
    "id": ("a1b2", "a1b2"),
}


def test_each_variable_sets_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, name in VARIABLES.items():
        monkeypatch.setenv(name, VALUES.get(key, ("lab", "lab"))[0])
    found = settings()
    assert {key: getattr(found, key) for key in VARIABLES} == {
        key: VALUES.get(key, ("lab", "lab"))[1] for key in VARIABLES
    }


@pytest.mark.parametrize(
    ("variables", "mode", "origin"),
    [
        ({"MODE": "dryrun"}, "offline", "WANDB_MODE"),
        ({"MODE": "run"}, "online", "WANDB_MODE"),
        ({"DISABLED": "true", "MODE": "online"}, "disabled", "WANDB_DISABLED"),
        ({"DISABLED": "false", "MODE": "online"}, "online", "WANDB_MODE"),
    ],
)
def test_old_names_of_modes(
    variables: dict[str, str], mode: str, origin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    assert settings().mode == mode
    assert origins(compose_raw([]), [])["mode"] == origin
    assert settings("tracking.wandb.mode=dryrun").mode == "offline"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("WANDB_MODE", "dryrum", "should be 'offline', 'online' or 'disabled'"),
        ("WANDB_DISABLED", "maybe", "should be true or false"),
        (
            "WANDB_PROJECT",
            "a/b",
            r"should have 1 to 128 characters, without any of / \ # ? % :",
        ),
        ("WANDB_NAME", "x" * 129, "should have 1 to 128 characters"),
        ("WANDB_INIT_TIMEOUT", "soon", "should be a valid number"),
    ],
)
def test_a_wrong_value_names_the_variable(
    name: str, value: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught:
        settings()
    assert str(caught.value).startswith(f"{name}={value}: {rule}")
    assert os.environ[name] == value
