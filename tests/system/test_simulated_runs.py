"""Simulated time changes no weights, and survives kills and several processes."""

import signal
from functools import partial
from pathlib import Path

import pytest
from support.killed_runs import ended, outcome

SMALL = (
    *("algorithm=fedavg", "rounds=5", "clients.count=6", "clients.per_round=3", "data.subset=200"),
    *("local.epochs=1", "checkpoint.every=2", "measure.personal.every=1000"),
    *("measure.prototypes.every=1000", "tracking.wandb.mode=disabled", "tracking.progress=false"),
    "measure.global.targets=[0.2,0.4]",
)
RANKS = ["engine.devices=2", "engine.device=cpu"]
clock_of = partial(outcome, shown="clock/")

LIMITS = [
    ["system.deadline=2.5"],
    ["system.deadline=2.5", "system.late=partial", "local.epochs=3"],
    ["system.invite=5"],
    ["availability=bernoulli", "availability.p=0.3"],
    ["availability=diurnal", "availability.period=20", "sampler=hics"],
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert ended(folder, *SMALL, "system=lognormal") == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("limits", LIMITS, ids=" ".join)
def test_with_limits_engines_processes_and_kills_give_the_same(
    limits: list[str], tmp_path: Path
) -> None:
    overrides = [*SMALL, "system=lognormal", *limits]
    assert ended(tmp_path / "whole", *overrides) == 0
    digest, clocks, turns = clock_of(tmp_path / "whole")
    assert ended(tmp_path / "killed", *overrides, "resume=auto", dies_in=4) == -signal.SIGKILL
    assert ended(tmp_path / "killed", *overrides, "resume=auto") == 0
    assert clock_of(tmp_path / "killed") == (digest, clocks, turns)
    for name, others in {"two": RANKS, "stacked": ["engine=vectorized"]}.items():
        assert ended(tmp_path / name, *overrides, *others) == 0
        assert clock_of(tmp_path / name)[2] == turns
        for found, expected in zip(clock_of(tmp_path / name)[1], clocks, strict=True):
            assert found == pytest.approx(expected)


@pytest.mark.slow
def test_devices_change_neither_weights_nor_turns(whole: Path, tmp_path: Path) -> None:
    assert ended(tmp_path / "none", *SMALL) == 0
    digest, clocks, turns = clock_of(tmp_path / "none")
    assert (digest, turns) == clock_of(whole)[::2]
    assert clocks == [{}] * 5
    assert len(turns.splitlines()) == 1 + 5 * 3


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_same_clock(whole: Path, tmp_path: Path) -> None:
    overrides = [*SMALL, "system=lognormal", "resume=auto"]
    assert ended(tmp_path / "killed", *overrides, dies_in=4) == -signal.SIGKILL
    rows = (tmp_path / "killed" / "turns.csv").read_text().splitlines()
    assert rows[-1].startswith("3,")  # round 3 is trained again after the checkpoint of round 2
    assert ended(tmp_path / "killed", *overrides) == 0
    assert clock_of(tmp_path / "killed") == clock_of(whole)


@pytest.mark.slow
def test_two_processes_have_the_clock_of_one(whole: Path, tmp_path: Path) -> None:
    assert ended(tmp_path / "two", *SMALL, "system=lognormal", *RANKS) == 0
    _, clocks, turns = clock_of(tmp_path / "two")
    assert turns == clock_of(whole)[2]
    for found, expected in zip(clocks, clock_of(whole)[1], strict=True):
        assert found == pytest.approx(expected)
