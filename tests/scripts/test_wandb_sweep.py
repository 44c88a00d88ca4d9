"""The command lines that W&B's agent makes of ``scripts/wandb_sweep.yaml``."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.federations import compose
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args

from fedexp.measures.validation import Validation

SWEEP = yaml.safe_load(
    (Path(__file__).parents[2] / "scripts" / "wandb_sweep.yaml").read_text(encoding="utf-8")
)


def arguments(end: str) -> list[str]:
    """What takes the place of ``${args_no_hyphens}`` at one end of every range."""
    values = {
        key: {"value": value.get("value", value.get(end))}
        for key, value in SWEEP["parameters"].items()
    }
    made: dict[str, Any] = create_sweep_command_args({"args": values})
    own = [each for each in SWEEP["command"] if not each.startswith("${")]
    assert own[0] == "fedexp"
    return [*own[1:], *made["args_no_hyphens"]]


@pytest.mark.parametrize("end", ["min", "max"])
def test_both_ends_of_every_range_compose(end: str) -> None:
    config = compose(*arguments(end))
    assert config.optimizer.node["lr"] == SWEEP["parameters"]["optimizer.lr"][end]
    assert config.head["rho"] == SWEEP["parameters"]["head.rho"][end]
    assert config.tracking.wandb.mode == "online"


def test_the_metric_is_the_objective_on_validation_data() -> None:
    config, metric = compose(*arguments("min")), SWEEP["metric"]
    assert metric["name"] == config.objective
    assert config.objective.startswith("validation/")
    goals = {"higher": "maximize", "lower": "minimize"}
    assert metric["goal"] == goals[Validation.headlines[metric["name"]]]
    assert config.data.validation > 0
