"""Runs that stopped before their last round: no mean counts them, and a line names each."""

import json
from pathlib import Path

import pandas as pd
import pytest
from support.run_files import accuracies, write_run

from fedexp.cli.report import main
from fedexp.reporting.pictures import _drawings
from fedexp.reporting.report import Report
from fedexp.reporting.runs import read_run
from fedexp.reporting.sweep import UNFINISHED, report_sweep
from fedexp.reporting.unfinished import how_to_finish


def write_half(folder: Path) -> Path:
    """FedAvg with two finished seeds and one that stopped after 1 of 2 rounds; FedNH stopped."""
    (folder / "multirun.yaml").write_text("hydra: {}")
    for seed, values in enumerate([(0.1, 0.5), (0.1, 0.7), (0.1,)]):
        overrides = ["algorithm=fedavg", f"seed={seed}"]
        write_run(folder / str(seed), overrides, accuracies(*values), rounds=2)
    write_run(folder / "3", ["algorithm=fednh", "seed=0"], accuracies(0.1), rounds=2)
    return folder


def lines(folder: Path) -> list[str]:
    return [
        f"{folder / job}: 1 of 2 rounds, left out of means; to finish it: fedexp -m resume={folder}"
        for job in ("2", "3")
    ]


def test_means_and_n_count_finished_runs(tmp_path: Path) -> None:
    made = Report.read(write_half(tmp_path))
    table = made.tables()[0]
    assert table.rows == [["fedavg", "2", "0.6000 ± 0.1414"], ["fednh", "0", ""]]
    assert "n = 0: no run is finished." in table.notes
    assert made.problems == lines(tmp_path)


def test_differences_are_of_finished_runs(tmp_path: Path) -> None:
    write_half(tmp_path)
    for seed, last in enumerate((0.6, 0.8, 0.9)):
        overrides = ["algorithm=fedprox", f"seed={seed}"]
        write_run(tmp_path / f"b{seed}", overrides, accuracies(0.1, last), rounds=2)
    made = Report.read(tmp_path, baseline="algorithm=fedavg")
    assert [row[:3] for row in made.tables()[1].rows] == [["fedprox", "2", "+0.1000 ± 0.0000"]]
    to_best = made.values[made.values["metric"] == "rounds_to/best_of_baseline"]
    assert set(to_best["seed"]) == {0, 1}


def test_curves_are_means_of_finished_runs(tmp_path: Path) -> None:
    report = Report.read(write_half(tmp_path))
    drawings = {each.name: each for each in _drawings(report, [])}
    figure = drawings["curves_global_accuracy"].draw()
    assert figure is not None
    fedavg, *_ = figure.axes[0].lines
    assert fedavg.get_ydata() == pytest.approx([0.1, 0.6])  # not cut off where the third ends


def test_no_finished_run_at_all(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["seed=0"], accuracies(0.5), rounds=2)
    assert Report.read(tmp_path).tables()[0].rows == [["0", ""]]
    made = Report.read(tmp_path, baseline=None, targets=[0.4], metrics=["global/accuracy"])
    assert made.tables()[0].rows == [["0", "", ""]]


def test_the_sweep_s_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_sweep(write_half(tmp_path), "fedexp.log") == UNFINISHED  # not failed
    said = capsys.readouterr().out
    assert "0.6000 ± 0.1414" in said
    assert all(line in said for line in lines(tmp_path))
    table = pd.read_csv(tmp_path / "sweep.csv", index_col="configuration")
    assert table["seeds"].tolist() == [2, 0]
    assert table["global/accuracy/mean"].isna().tolist() == [False, True]


def test_the_command_prints_each_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(write_half(tmp_path)), "--to", str(tmp_path / "report")])
    said = capsys.readouterr()
    assert "4 runs, 2 finished" in said.out
    assert said.err.splitlines() == lines(tmp_path)
    for name in ("report.md", "report.html"):
        assert "1 of 2 rounds, left out of means" in (tmp_path / "report" / name).read_text()


def test_a_run_alone_is_resumed_by_its_folder(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [], accuracies(0.5), rounds=400, limits={"minutes": 5})
    assert how_to_finish(read_run(folder)) == (
        f"{folder}: 1 of 400 rounds, left out of means; "
        f"to finish it: fedexp resume={folder} limits.minutes=null"
    )
    (folder / ".hydra" / "overrides.yaml").unlink()
    assert how_to_finish(read_run(folder)) == f"{folder}: 1 of 400 rounds, left out of means"


def test_a_folder_of_own_options_is_named_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [], accuracies(0.5), rounds=2)
    sources = [
        {"path": "/fedexp/conf", "schema": "file", "provider": "main"},
        {"path": "/my own/conf", "schema": "file", "provider": "command-line"},
    ]
    runtime = {"choices": {"algorithm": "fedavg"}, "config_sources": sources}
    (folder / ".hydra" / "hydra.yaml").write_text(json.dumps({"hydra": {"runtime": runtime}}))
    line = how_to_finish(read_run(folder))
    assert line.endswith(f": fedexp resume={folder} --config-dir '/my own/conf'")


def test_a_run_that_failed_is_tried_again_and_its_log_named(tmp_path: Path) -> None:
    folder = write_half(tmp_path) / "2"
    log = folder / "fedexp.log"
    log.write_text("x" * 5000 + "\n[2026-01-01][fedexp.train][ERROR] seed=2 failed: not finite\n")
    assert how_to_finish(read_run(folder)) == (
        f"{folder}: 1 of 2 rounds, left out of means; it failed, see its fedexp.log; "
        f"to try again: fedexp -m resume={tmp_path}"
    )
    log.write_text(log.read_text() + "[2026-01-02][fedexp][INFO] goes on\n" * 200)
    assert "to finish it" in how_to_finish(read_run(folder))  # a later start got further
