"""``fedexp-replay``: the simulated time of finished runs on other devices."""

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

import fedexp
from fedexp.cli.compose import composed
from fedexp.cli.replay import main
from fedexp.reporting.runs import read_run
from fedexp.runtime.replay import Replay

SMALL = (
    *("algorithm=fedavg", "rounds=3", "clients.count=5", "clients.per_round=3", "data.subset=200"),
    *("local.epochs=1", "measure.personal=null", "measure.partition=null", "checkpoint.keep=0"),
    *("measure.prototypes=null", "tracking.wandb.mode=disabled", "tracking.progress=false"),
    "measure.global.targets=[0.2,0.4]",
)


def clocks(folder: Path) -> list[dict[str, float]]:
    """The metrics of simulated time of each round of a run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in each.items() if k.startswith("clock/")} for each in lines]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of three rounds without devices; no test changes it."""
    folder = tmp_path_factory.mktemp("runs") / "plain"
    fedexp.run([*SMALL, f"hydra.run.dir={folder}"])
    return folder


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one round, likewise."""
    folder = tmp_path_factory.mktemp("runs") / "short"
    fedexp.run([*SMALL, "rounds=1", f"hydra.run.dir={folder}"])
    return folder


@pytest.mark.parametrize("option", ["phones", "lognormal"])
def test_a_replay_equals_a_run_with_the_clock_to_the_digit(
    option: str, plain: Path, tmp_path: Path
) -> None:
    fedexp.run([*SMALL, f"system={option}", f"hydra.run.dir={tmp_path / 'timed'}"])
    run = read_run(plain)
    assert clocks(plain) == [{}, {}, {}]
    system = composed([f"system={option}"]).config["system"]
    replayed = Replay(run.folder, run.config, run.history).on(system, [0.2, 0.4])
    found = [{k: v for k, v in row.items() if k.startswith("clock/")} for row in replayed]
    assert found == clocks(tmp_path / "timed")
    others = [{k: v for k, v in row.items() if not k.startswith("clock/")} for row in replayed]
    assert others == run.history


def test_the_command_compares_networks(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(plain), "--targets", "0.05,1.0", "system=phones,hospitals"]
    main(["--to", str(tmp_path / "report"), *words])
    said = capsys.readouterr()
    assert "phones" in said.out
    assert "hospitals" in said.out
    assert "target 1: no run reached it" in said.err
    curves = pd.read_csv(tmp_path / "report" / "curves.csv")
    assert set(curves["system"]) == {"phones", "hospitals"}
    assert len(curves) == 6
    assert (curves.groupby("system")["clock/seconds"].diff().dropna() > 0).all()
    assert "clock/time_to/0.05" in (tmp_path / "report" / "results.csv").read_text()
    report = (tmp_path / "report" / "report.md").read_text()
    assert "global/accuracy over simulated seconds" in report


def test_what_the_devices_decide_is_run_again(plain: Path, tmp_path: Path) -> None:
    fedexp.run([*SMALL, "system=phones", "system.invite=4", f"hydra.run.dir={tmp_path / 'a'}"])
    with pytest.raises(SystemExit, match="its system lets the devices decide how it trains"):
        main([str(tmp_path / "a"), "system=hospitals"])
    fedexp.run([*SMALL, "system=phones", "sampler=oort", f"hydra.run.dir={tmp_path / 'b'}"])
    with pytest.raises(SystemExit, match="its sampler lets the devices decide"):
        main([str(tmp_path / "b"), "system=hospitals"])
    with pytest.raises(SystemExit, match="its system lets the devices decide"):
        main([str(plain), "system=phones", "system.deadline=10"])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["system=phones"], "needs folders of runs and one system="),
        (["short"], "needs folders of runs and one system="),
        (["short", "system=phones", "rounds=3"], "rounds=3: only system="),
        (["short", "system=fones"], "fones"),
        (["short", "system=none"], "has no devices"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], line: str, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(short.parent)
    with pytest.raises(SystemExit, match=r"^fedexp-replay: ") as error:
        main(words)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_without_its_log_of_turns(short: Path, tmp_path: Path) -> None:
    turns = Path(shutil.copytree(short, tmp_path / "run")) / "turns.csv"
    with turns.open() as file:
        assert len(list(csv.DictReader(file))) == 3
    written = turns.read_text()
    for content, line in (
        (written.replace("sent", "lost"), "'lost' is no outcome"),
        (written.replace("\n1,", "\n1,9", 1), r"turns\.csv: has client 9\d; the run has 0 to"),
        ("", "it has no column client"),
        ("[1]\n", "it has no column client"),
        # A power loss may take rows that are not yet on disk.
        (written[: written.index("\n") + 1], r"turns\.csv: lacks turns of round 1; .* are 0, "),
        ("\n".join(written.split("\n")[:-2]) + "\n", r"lacks turns of round 1; their download_b"),
    ):
        turns.write_text(content)
        with pytest.raises(SystemExit, match=line):
            main([str(tmp_path / "run"), "system=phones"])
    turns.unlink()
    with pytest.raises(SystemExit, match=r"has no turns\.csv"):
        main([str(tmp_path / "run"), "system=phones"])
