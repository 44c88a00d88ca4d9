"""Simulated time changes no weights, and survives kills, several processes and overlap."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from command_line import PROCESSES

import fedexp
from fedexp.federation import Federation

SMALL = (
    *("algorithm=fedavg", "rounds=5", "clients.count=6", "clients.per_round=3", "data.subset=200"),
    *("local.epochs=1", "checkpoint.every=2", "measure.personal.every=1000"),
    *("measure.prototypes.every=1000", "tracking.wandb.mode=disabled", "tracking.progress=false"),
    "measure.global.targets=[0.2,0.4]",
)
RANKS = ["engine.devices=2", "engine.device=cpu"]


def run(folder: Path, overrides: list[str], dies_in: int = 0) -> None:
    start_round = Federation.start_round

    def start(self: Federation, round: int) -> Any:
        if round == dies_in:
            self.log_pending()
            signal.raise_signal(signal.SIGKILL)
        return start_round(self, round)

    Federation.start_round = start  # type: ignore[method-assign]
    fedexp.run([f"hydra.run.dir={folder}", *SMALL, *overrides])


def ended(folder: Path, overrides: list[str], dies_in: int = 0) -> int | None:
    process = PROCESSES.Process(target=run, args=(folder, overrides, dies_in))
    process.start()
    process.join()
    return process.exitcode


def outcome(folder: Path) -> tuple[str, list[dict[str, float]], str]:
    """The digest of the final weights, the clock in each round, and the log of turns."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clocks = [{k: v for k, v in each.items() if k.startswith("clock/")} for each in lines]
    digest = json.loads((folder / "summary.json").read_text())["weights_digest"]
    return digest, clocks, (folder / "turns.csv").read_text()


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
    assert ended(folder, ["system=lognormal"]) == 0
    return folder


@pytest.mark.parametrize("limits", LIMITS, ids=" ".join)
def test_with_limits_engines_processes_and_kills_give_the_same(
    limits: list[str], tmp_path: Path
) -> None:
    overrides = ["system=lognormal", *limits]
    assert ended(tmp_path / "whole", overrides) == 0
    digest, clocks, turns = outcome(tmp_path / "whole")
    assert ended(tmp_path / "killed", [*overrides, "resume=auto"], dies_in=4) == -signal.SIGKILL
    assert ended(tmp_path / "killed", [*overrides, "resume=auto"]) == 0
    assert outcome(tmp_path / "killed") == (digest, clocks, turns)
    for name, others in {"two": RANKS, "stacked": ["engine=vectorized"]}.items():
        assert ended(tmp_path / name, [*overrides, *others]) == 0
        assert outcome(tmp_path / name)[2] == turns
        for found, expected in zip(outcome(tmp_path / name)[1], clocks, strict=True):
            assert found == pytest.approx(expected)


def test_devices_change_neither_weights_nor_turns(whole: Path, tmp_path: Path) -> None:
    assert ended(tmp_path / "none", []) == 0
    digest, clocks, turns = outcome(tmp_path / "none")
    assert (digest, turns) == outcome(whole)[::2]
    assert clocks == [{}] * 5
    assert len(turns.splitlines()) == 1 + 5 * 3


def test_a_killed_run_goes_on_with_the_same_clock(whole: Path, tmp_path: Path) -> None:
    overrides = ["system=lognormal", "resume=auto"]
    assert ended(tmp_path / "killed", overrides, dies_in=4) == -signal.SIGKILL
    rows = (tmp_path / "killed" / "turns.csv").read_text().splitlines()
    assert rows[-1].startswith("3,")  # round 3 is trained again after the checkpoint of round 2
    assert ended(tmp_path / "killed", overrides) == 0
    assert outcome(tmp_path / "killed") == outcome(whole)


def test_two_processes_have_the_clock_of_one(whole: Path, tmp_path: Path) -> None:
    assert ended(tmp_path / "two", ["system=lognormal", *RANKS]) == 0
    _, clocks, turns = outcome(tmp_path / "two")
    assert turns == outcome(whole)[2]
    for found, expected in zip(clocks, outcome(whole)[1], strict=True):
        assert found == pytest.approx(expected)


def test_overlapping_evaluation_has_the_same_clock(whole: Path, tmp_path: Path) -> None:
    assert ended(tmp_path / "overlap", ["system=lognormal", "evaluation.overlap=true"]) == 0
    assert outcome(tmp_path / "overlap") == outcome(whole)
