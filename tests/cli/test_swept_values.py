"""Every form of a sweep in Hydra's grammar becomes a list of jobs, and its runs train."""

import json
import random
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from support.command_line import fedexp
from support.short_runs import NO_PICTURES

from fedexp.cli import hydra_api
from fedexp.cli.command import config_folder
from fedexp.cli.swept_values import swept_values


def values(override: str) -> list[str]:
    with hydra_api.initialize(config_folder()):
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        (parsed,) = parser.parse_overrides([override])
        return swept_values(parsed)


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rounds=3", ["3"]),
        ("seed=0,1", ["0", "1"]),
        ("seed=range(3)", ["0", "1", "2"]),
        ("seed=range(0,10,step=4)", ["0", "4", "8"]),
        ("optimizer.lr=choice(0.1,1e-2)", ["0.1", "0.01"]),
        ("seed=sort(3,1,2,reverse=true)", ["3", "2", "1"]),
        ("seed=tag(a,b,choice(1,2))", ["1", "2"]),
        ("seed=int(choice(1.0,2.0))", ["1", "2"]),
        (
            "algorithm=glob(fedp*,exclude=[fedpa*,fedpro*,fedpcl])",
            ["fedper", "fedphp", "fedptr", "fedptr_s"],
        ),
        ("algorithm=glob([scaff*,moo*])", ["moon", "scaffold"]),
        ("tracking.wandb.name='a,b',\"it's\"", ["'a,b'", '"it\'s"']),
        ("tracking.wandb.tags=[a,b],[c]", ["[a,b]", "[c]"]),
        ("+note={a:'b,c'},{a:1}", ["{a:'b,c'}", "{a:1}"]),
        ("tracking.wandb.name=null,'null'", ["null", "'null'"]),
        # A text of digits stays a text, although Hydra drops its quotes.
        ("tracking.wandb.name=choice('7',8)", ["'7'", "8"]),
        ("tracking.wandb.name=str(choice(1,true))", ["'1'", "'true'"]),
    ],
)
def test_the_values_are_listed_as_jobs_get_them(override: str, expected: list[str]) -> None:
    assert values(override) == expected


def test_a_shuffled_sweep_has_the_same_order_at_each_start() -> None:
    orders = set()
    for seed in range(5):
        random.seed(seed)
        orders.add(tuple(values("seed=shuffle(range(9))")))
    (order,) = orders
    assert sorted(order) == [str(each) for each in range(9)] != list(order)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("optimizer.lr=interval(0.1,1)", "only lists of values can be swept; to search an"),
        ("optimizer.lr=tag(log,interval(0.1,1))", "only lists of values can be swept"),
        ("seed=range(3,1)", "has no values"),
        ("seed=range(0,3,step=0)", r"range\(\) arg 3 must not be zero"),
        ("algorithm=glob(zzz*)", "no option fits"),
    ],
)
def test_values_that_cannot_be_listed(override: str, line: str) -> None:
    with pytest.raises(HydraException, match=line) as raised:
        values(override)
    assert str(raised.value).startswith(override)


TINY = ["rounds=1", "clients.count=4", "clients.per_round=2", "local.epochs=1", "data.subset=300"]
TINY += ["measure.personal=null", "tracking.wandb.mode=disabled", *NO_PICTURES]

PRESET = """# @package _global_
local:
  batch_size: 20
hydra:
  sweeper:
    params:
      seed: range(2)
      optimizer.lr: 0.1,0.01
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "jobs"),
    [
        (
            ["algorithm=glob(fedavg*,exclude=fedg*)", "seed=shuffle(1,2)"],
            ["algorithm=fedavg", "algorithm=fedavgm", "seed=1", "seed=2"],
        ),
        (
            ["--config-dir=own", "experiment=mine", "seed=4"],
            ["optimizer.lr=0.1", "optimizer.lr=0.01", "seed=4"],
        ),
        (
            [
                *("hydra/sweeper=optuna", "optimizer.lr=tag(log,interval(0.01,0.1))"),
                *("hydra.sweeper.n_trials=1", "objective=validation/accuracy"),
                "data.validation=0.2",
            ],
            ["data.validation=0.2"],
        ),
    ],
)
def test_they_train(typed: list[str], jobs: list[str], tmp_path: Path) -> None:
    if "hydra/sweeper=optuna" in typed:
        pytest.importorskip("hydra_plugins.hydra_optuna_sweeper")
    (tmp_path / "own/experiment").mkdir(parents=True)
    (tmp_path / "own/experiment/mine.yaml").write_text(PRESET)
    done = fedexp("-m", *typed, *TINY, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = tmp_path.glob("multirun/*/*/*/summary.json")
    overrides = {each for run in runs for each in json.loads(run.read_text())["overrides"]}
    assert set(jobs) <= overrides
    assert not any("(" in each for each in overrides)
