"""Every number of a report is computed again from the runs."""

import json
import shutil
from contextlib import chdir
from pathlib import Path

import pandas as pd
import pytest
from support.run_files import accuracies, write_run

from fedexp.cli import report
from fedexp.reporting.statistics import ROUNDS_TO_BASELINE
from fedexp.verification.report import verify_report
from fedexp.verification.verdict import Outcome, Verdict

VALUES = {"fedavg": (0.5, 0.6), "fednh": (0.7, 0.9)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``runs`` and a ``report`` that compares them."""
    place = tmp_path_factory.mktemp("made")
    for algorithm, values in VALUES.items():
        for seed, value in enumerate(values):
            run, typed = place / "runs" / f"{algorithm}{seed}", [f"algorithm={algorithm}"]
            write_run(run, [*typed, f"seed={seed}"], accuracies(0.1, value))
    with chdir(place):
        report.main(["runs", "--to", "report", "--baseline", "algorithm=fedavg"])
    return place


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The same elsewhere: a report finds its runs from where it lies."""
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_a_report_follows_from_its_runs(copy: Path) -> None:
    place, line = copy / "report", "every number of 7 files follows from 4 runs"
    assert verify_report(place) == Verdict(str(place), Outcome.SAME, line, [])


def test_each_row_names_its_runs(made: Path) -> None:
    sources = json.loads((made / "report" / "sources.json").read_text())
    folders = [run["folder"] for run in sources["runs"]]
    assert folders == ["runs/fednh0", "runs/fednh1", "runs/fedavg0", "runs/fedavg1"]
    results = pd.read_csv(made / "report" / "results.csv")
    for row, (algorithm, metric) in enumerate(results[["algorithm", "metric"]].to_numpy()):
        own = [folders[number] for number in sources["rows"]["results.csv"][row]]
        two = [f"runs/{algorithm}0", f"runs/{algorithm}1"]
        assert own == (folders if metric == ROUNDS_TO_BASELINE and algorithm == "fednh" else two)
    assert all(len(runs) == 4 for runs in sources["rows"]["differences.csv"])
    values = pd.read_csv(made / "report" / "values.csv")
    for row, seed in enumerate(values["seed"]):
        numbers = sources["rows"]["values.csv"][row]
        assert {folders[number][-1] for number in numbers} == {str(seed)}


@pytest.mark.parametrize("name", ["report.md", "report.tex", "report.html"])
def test_a_swapped_cell_is_named(name: str, copy: Path) -> None:
    path = copy / "report" / name
    text = path.read_text()
    assert "0.800" in text
    path.write_text(text.replace("0.800", "0.801", 1))
    found = verify_report(copy / "report")
    assert found.outcome == Outcome.DIFFERS
    (line,) = found.details
    assert line.startswith(f"{name}, line ")
    assert "0.801" in line.partition(", but the runs give ")[0]
    assert "0.800" in line.partition(", but the runs give ")[2]


def test_a_cell_of_a_table_is_named_by_its_column(copy: Path) -> None:
    path = copy / "report" / "values.csv"
    table = pd.read_csv(path)
    is_meant = (table["seed"] == 1) & (table["value"] == 0.9) & (table["statistic"] == "final")
    (row,) = table.index[is_meant]
    table.loc[row, "value"] = 0.95
    table.to_csv(path, index=False)
    found = verify_report(copy / "report")
    assert found.details == [f"values.csv, row {row + 2}, value: 0.95, but the runs give 0.9"]


def test_a_run_that_changed_is_named_with_the_numbers_that_no_longer_follow(copy: Path) -> None:
    path = copy / "runs" / "fednh0" / "metrics.jsonl"
    path.write_text(path.read_text().replace("0.7", "0.71"))
    found = verify_report(copy / "report")
    assert found.details[0] == ("runs/fednh0/metrics.jsonl: has changed since the report was made")
    assert "report.md, line" in "\n".join(found.details)


def test_without_its_runs_a_report_cannot_be_compared(copy: Path) -> None:
    shutil.rmtree(copy / "runs")
    assert verify_report(copy / "report").outcome == Outcome.UNKNOWN


@pytest.mark.parametrize("text", ["", "[]", '{"from": 3}', "x", '{"from": "/", "files": {}}'])
def test_a_damaged_record_is_one_line(text: str, copy: Path) -> None:
    (copy / "report" / "sources.json").write_text(text)
    found = verify_report(copy / "report")
    assert found.outcome == Outcome.UNKNOWN
    assert len(found.details) == 1
