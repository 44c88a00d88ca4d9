"""Values that were typed, that a search chose, and that presets set."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support.run_files import accuracies, write_run

from fedexp.reporting.also_differs import TITLE
from fedexp.reporting.report import Report
from fedexp.reporting.sweep import report_sweep

RATES = {"fedavg": 0.0123456789, "fednh": 0.0928}


def write_sweep(folder: Path, task: Sequence[str], sweeper: str, **options: Any) -> Path:
    """The file that a sweep leaves beside its jobs."""
    folder.mkdir(parents=True)
    node: dict[str, Any] = {"overrides": {"task": list(task)}, "sweeper": options}
    node["runtime"] = {"choices": {"hydra/sweeper": sweeper}}
    (folder / "multirun.yaml").write_text(json.dumps({"hydra": node}))
    return folder


def differing(*folders: Path) -> Mapping[str, list[str]]:
    made = Report.read(folders)
    (table,) = [each for each in made.tables() if each.title == TITLE]
    assert table.columns == ["key", "fedavg", "fednh"]
    return {row[0]: row[1:] for row in table.rows}


def test_a_typed_value_is_no_preset(tmp_path: Path) -> None:
    """The advice of the page on choosing settings: each method with its own learning rate."""
    for name, rate in RATES.items():
        typed = [f"algorithm={name}", f"optimizer.lr={rate}"]
        write_sweep(tmp_path / name, [*typed, "seed=0,1"], "tables", params={}, tune=None)
        for seed in (0, 1):
            clip = None if name == "fedavg" else 10
            job = [*typed, f"seed={seed}"]
            write_run(tmp_path / name / str(seed), job, local={"grad_clip": clip})
    assert differing(tmp_path / "fedavg", tmp_path / "fednh") == {
        "optimizer.lr": ["0.0123456789 (typed)", "0.0928 (typed)"],
        "local.grad_clip": ["null", "10"],
    }


def test_a_run_alone_tells_what_was_typed(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["algorithm=fedavg"], optimizer={"lr": 0.02})
    write_run(tmp_path / "1", ["algorithm=fednh", "optimizer.lr=0.0928"])
    assert differing(tmp_path) == {"optimizer.lr": ["0.02", "0.0928 (typed)"]}


@pytest.mark.parametrize("is_typed", [False, True])
def test_the_best_trials_of_two_searches(is_typed: bool, tmp_path: Path) -> None:
    """The range of the search is in a file of ``search=``, or typed."""
    for name, rate in RATES.items():
        task, params = [f"algorithm={name}"], {"optimizer.lr": "interval(0.01, 0.1)"}
        if is_typed:
            task, params = [*task, "optimizer.lr=tag(log, interval(0.01, 0.1))"], {}
        folder = write_sweep(tmp_path / name, task, "optuna", params=params or None)
        for trial in range(3):
            write_run(folder / str(trial), [f"optimizer.lr={rate + trial}", f"algorithm={name}"])
    best = [tmp_path / name / "0" for name in RATES]
    assert differing(*best) == {
        "optimizer.lr": ["0.0123456789 (searched, 3 trials)", "0.0928 (searched, 3 trials)"]
    }


def test_a_contest_and_a_table_of_presets(tmp_path: Path) -> None:
    """The contest tunes the rate; the decay comes from the table's own file: nobody typed it."""
    tune = {"budgets": [1, 4], "common": {"optimizer.lr": "0.1,1"}, "own": {"fednh": {}}}
    write_sweep(tmp_path / "sweep", ["rounds=1"], "tables", params={}, tune=tune)
    for n, (name, rate) in enumerate(RATES.items()):
        job = [f"algorithm={name}", f"optimizer.lr={rate}", f"optimizer.decay={n}"]
        write_run(tmp_path / "sweep" / str(n), [*job, "rounds=1"])
    assert differing(tmp_path) == {
        "optimizer.lr": ["0.0123456789 (searched, 4 trials)", "0.0928 (searched, 4 trials)"],
        "optimizer.decay": ["0", "1"],
    }


def test_a_contest_also_searches_keys_that_a_method_tries_alone(tmp_path: Path) -> None:
    tune = {"budgets": [2], "common": {}, "own": {"fednh": {}}, "alone": {"local.epochs": "2"}}
    write_sweep(tmp_path / "sweep", ["rounds=1"], "tables", params={}, tune=tune)
    for n, job in enumerate((["algorithm=fedavg", "local.epochs=2"], ["algorithm=fednh"])):
        write_run(tmp_path / "sweep" / str(n), [*job, "rounds=1"], local={"epochs": 1})
    assert differing(tmp_path) == {"local.epochs": ["2 (searched, 2 trials)", "1"]}


def test_a_damaged_file_of_a_sweep_stops_no_report(tmp_path: Path) -> None:
    for n, text in enumerate(["[", "hydra: {}", "5", ""]):
        folder = tmp_path / str(n)
        folder.mkdir()
        (folder / "multirun.yaml").write_text(text)
        write_run(folder / "0", ["algorithm=fedavg"], optimizer={"lr": 0.02})
        write_run(folder / "1", ["algorithm=fednh", "optimizer.lr=0.0928"])
        assert differing(folder) == {"optimizer.lr": ["0.02", "0.0928 (typed)"]}


def test_a_search_has_a_column_for_every_searched_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The learning rate alone tells the trials apart; one searched value was the same twice."""
    monkeypatch.setenv("COLUMNS", "50")
    params = {"optimizer.lr": "interval(0, 1)", "head.rho": "interval(0, 1)", "x.y": "choice(1,2)"}
    write_sweep(tmp_path / "s", ["seed=0"], "optuna", params=params)
    for n, (rate, rho) in enumerate([(0.0375619614449, 0.5), (0.0123456789012, 0.7365185360714)]):
        job = [f"optimizer.lr={rate}", f"head.rho={rho}", "x.y=1", "seed=0"]
        write_run(tmp_path / "s" / str(n), job, accuracies(0.5 + n / 10))
    assert report_sweep(tmp_path / "s", "fedexp.log", objective="global/accuracy") == 0
    said = capsys.readouterr().out
    assert [line.split() for line in said.splitlines() if line.startswith(" 0.")] == [
        ["0.03756", "0.5", "1", "1", "0.5000"],
        ["0.01235", "0.7365", "1", "1", "0.6000"],
    ]
    table = pd.read_csv(tmp_path / "s" / "sweep.csv")
    keys = ["optimizer.lr", "head.rho", "x.y"]
    assert list(table.columns[:5]) == ["configuration", *keys, "seeds"]
    assert table[keys].to_numpy().tolist() == [
        [0.0375619614449, 0.5, 1.0],
        [0.0123456789012, 0.7365185360714, 1.0],
    ]
    assert Report.read(tmp_path).keys == keys
