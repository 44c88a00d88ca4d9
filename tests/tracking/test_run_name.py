from pathlib import Path
from typing import Any

import pytest

from fedexp.tracking.run_name import columns, run_name
from fedexp.tracking.tracker import RunInfo

CHOICES = {"algorithm": "fednh", "data": "digits", "partition": "dirichlet", "head": "prototype"}


def info(*overrides: str, values: dict[str, Any] | None = None, **choices: str | None) -> RunInfo:
    config = {"seed": 0, "partition": values or {"beta": 0.3}, "data": {}, "head": {}}
    return RunInfo(Path(), config=config, choices=CHOICES | choices, overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "end"),
    [
        ([], ""),
        (["seed=0", "algorithm=fednh", "data=digits", "partition.beta=0.3"], ""),
        (["head.rho=0.90", "rounds=5"], "-rho0.9-rounds5"),
        (["head=prototype"], "-prototype"),
        (["optimizer.lr=0.10000000000000001"], "-lr0.1"),
        (["+loss.weights=[1,2]"], "-weights[1,2]"),
        (
            ["resume=auto", "tracking.wandb.mode=online", "engine=vectorized", "limits.minutes=5"],
            "",
        ),
        (["hydra/launcher=joblib"], ""),
    ],
)
def test_what_else_differs_follows_the_seed(overrides: list[str], end: str) -> None:
    assert run_name(info(*overrides)) == f"fednh-digits-dir0.3-s0{end}"


@pytest.mark.parametrize(
    ("option", "values", "name"),
    [
        ("iid", {"long_tail": None}, "iid"),
        ("shards", {"classes_per_client": 2}, "shards2"),
        ("legacy_dirichlet", {"beta": 0.01}, "legacy_dir0.01"),
    ],
)
def test_a_partition_has_its_skew(option: str, values: dict[str, Any], name: str) -> None:
    assert run_name(info(values=values, partition=option)) == f"fednh-digits-{name}-s0"


def test_a_name_is_as_long_as_wandb_allows() -> None:
    name = run_name(info(*(f"a.key{n}=value" for n in range(50))))
    assert name is not None
    assert len(name) == 128


def test_nothing_is_made_up() -> None:
    assert run_name(RunInfo(Path())) is None


def test_choices_are_columns_beside_the_config() -> None:
    found = columns(info(experiment=None, **{"method@_global_": "x", "hydra/launcher": "basic"}))
    expected = {"algorithm": "fednh", "data_option": "digits", "partition_option": "dirichlet"}
    assert found == expected | {"head_option": "prototype"}
