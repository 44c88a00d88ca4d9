"""``sources.json`` names the runs behind each row, from run folders that are written by hand."""

import json
from pathlib import Path

import pandas as pd
from support.run_files import accuracies, write_run

from fedexp.cli.report import main
from fedexp.reporting.ablation_rows import write_plain


def runs_behind(folder: Path, name: str) -> dict[str, set[str]]:
    """The row of a table, in its columns ``row`` or ``method`` -> the folders of its runs."""
    sources = json.loads((folder / "sources.json").read_text())
    names = [Path(run["folder"]).name for run in sources["runs"]]
    table = pd.read_csv(folder / f"{name}.csv")
    key = "row" if "row" in table else "method"
    rows = zip(table[key], sources["rows"][f"{name}.csv"], strict=True)
    return {row: {names[number] for number in own} for row, own in rows}


def test_a_row_of_an_ablation_comes_from_its_runs_and_those_of_the_full_method(
    tmp_path: Path,
) -> None:
    for head in ("prototype", "linear"):
        write_run(tmp_path / "sweep" / head, [f"head={head}"], accuracies(0.5))
    write_plain(tmp_path / "sweep", {"head": "linear"})
    main([str(tmp_path / "sweep"), "--to", str(tmp_path / "to")])
    assert runs_behind(tmp_path / "to", "ablation") == {"without head": {"prototype", "linear"}}


def test_a_gain_beside_a_paper_comes_from_the_runs_of_two_methods(tmp_path: Path) -> None:
    values = {f"algorithm={name}": 0.6 for name in ("fedavg", "fednh", "fedprox")}
    row = {"table": "Table 1", "metric": "global/accuracy", "statistic": "final", "values": values}
    for name in ("fedavg", "fednh", "fedprox"):
        overrides = ["experiment=a/b", f"algorithm={name}"]
        write_run(tmp_path / "runs" / name, overrides, accuracies(0.5), paper=[row])
    main([str(tmp_path / "runs"), "--to", str(tmp_path / "to")])
    assert runs_behind(tmp_path / "to", "paper") == {
        "algorithm=fedavg": {"fedavg"},
        "algorithm=fednh": {"fednh", "fedavg"},
        "algorithm=fedprox": {"fedprox", "fedavg"},
    }
