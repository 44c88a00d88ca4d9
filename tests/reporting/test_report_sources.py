"""``sources.json`` names the runs behind each row, from run folders that are written by hand."""

import json
from pathlib import Path

import pandas as pd
from support.run_files import accuracies, write_run

from fedexp.cli.report import main
from fedexp.reporting.ablation_rows import write_plain


def runs_behind(folder: Path, name: str) -> dict[str, set[str]]:
    """The row, method or algorithm of a table's rows of accuracies -> the folders of their runs."""
    sources = json.loads((folder / "sources.json").read_text())
    names = [Path(run["folder"]).name for run in sources["runs"]]
    table = pd.read_csv(folder / f"{name}.csv")
    key = next(each for each in ("row", "method", "algorithm") if each in table)
    rows = zip(table[key], table["metric"], sources["rows"][f"{name}.csv"], strict=True)
    return {
        row: {names[number] for number in own}
        for row, metric, own in rows
        if metric == "global/accuracy"
    }


def test_a_row_of_an_ablation_comes_from_its_runs_and_those_of_the_full_method(
    tmp_path: Path,
) -> None:
    for head in ("prototype", "linear"):
        write_run(tmp_path / "sweep" / head, [f"head={head}"], accuracies(0.5))
    write_plain(tmp_path / "sweep", {"head": "linear"})
    main([str(tmp_path / "sweep"), "--to", str(tmp_path / "to")])
    assert runs_behind(tmp_path / "to", "ablation") == {"without head": {"prototype", "linear"}}


def test_a_mean_comes_from_finished_runs_and_a_difference_from_shared_seeds(tmp_path: Path) -> None:
    for name, seeds in {"fedavg": (0, 1, 2, 3), "fednh": (1, 2, 3)}.items():
        for seed in seeds:
            values = [0.5] if (name, seed) == ("fednh", 3) else [0.5, 0.5]
            overrides = [f"algorithm={name}", f"seed={seed}"]
            folder = tmp_path / "runs" / f"{name}{seed}"
            write_run(folder, overrides, accuracies(*values), rounds=2)
    folder = tmp_path / "to"
    main([str(tmp_path / "runs"), "--baseline", "algorithm=fedavg", "--to", str(folder)])
    every = {"fedavg": {f"fedavg{n}" for n in range(4)}, "fednh": {"fednh1", "fednh2"}}
    assert runs_behind(folder, "results") == every
    pairs = {f"{name}{seed}" for name in every for seed in (1, 2)}
    assert runs_behind(folder, "differences") == {"fednh": pairs}


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
