import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from fedexp.cli.callbacks import SweepTable
from fedexp.tracking.sweep import aggregate, collect


def write_job(
    folder: Path, overrides: list[str], finals: Mapping[str, float | None] | None
) -> None:
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(json.dumps(overrides))
    if finals is not None:
        metrics = {name: {"final": value, "best": 1.0} for name, value in finals.items()}
        (folder / "summary.json").write_text(json.dumps({"metrics": metrics}))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two configurations, three seeds."""
    finals = {"fedavg": (0.5, 0.6, 0.7), "fedprox": (0.8, 0.8, 0.8)}
    jobs = [(name, seed) for name in finals for seed in range(3)]
    for number, (name, seed) in enumerate(jobs):
        overrides = ["rounds=5", f"algorithm={name}", f"seed={seed}", "partition.alphas=[0.1,1]"]
        accuracy = finals[name][seed]
        measured = {"global/accuracy": accuracy, "global/loss": 1 - accuracy}
        write_job(tmp_path / str(number), overrides, measured)
    return tmp_path


def end(folder: Path) -> None:
    hydra = {"sweep": {"dir": str(folder)}, "job": {"name": "fedexp"}}
    SweepTable().on_multirun_end(OmegaConf.create({"hydra": hydra}))


def test_mean_and_sample_deviation_over_seeds(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(sweep)
    table = pd.read_csv(sweep / "sweep.csv", index_col="configuration")
    # Of 0.5, 0.6, 0.7: mean 0.6, variance (0.01 + 0 + 0.01) / 2.
    expected = pd.DataFrame(
        {
            "seeds": [3, 3],
            "global/accuracy/mean": [0.6, 0.8],
            "global/accuracy/std": [0.1, 0.0],
            "global/loss/mean": [0.4, 0.2],
            "global/loss/std": [0.1, 0.0],
        },
        index=pd.Index(["algorithm=fedavg", "algorithm=fedprox"], name="configuration"),
    )
    pd.testing.assert_frame_equal(table, expected)

    printed = capsys.readouterr().out
    assert "0.600 ± 0.100" in printed
    assert "0.800 ± 0.000" in printed
    assert "loss" not in printed
    assert str(sweep / "sweep.csv") in printed
    assert "Failed" not in printed


def test_a_failed_job_is_named_and_does_not_count(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(sweep / "10", ["rounds=5", "algorithm=fedavg", "seed=3"], None)
    with pytest.raises(SystemExit, match="1"):
        end(sweep)
    assert pd.read_csv(sweep / "sweep.csv")["seeds"].tolist() == [3, 3]
    assert f"Failed: {sweep / '10'}; fedexp.log there says why\n" in capsys.readouterr().out


def test_all_failed_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(tmp_path / "0", ["seed=0"], None)
    with pytest.raises(SystemExit):
        end(tmp_path)
    assert not (tmp_path / "sweep.csv").exists()
    said = capsys.readouterr().out
    assert said == f"Failed: {tmp_path / '0'}; fedexp.log there says why\n"


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_table_fits_the_terminal_and_never_cuts_a_configuration(
    tmp_path: Path,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    finals = {f"personal/accuracy_{kind}": 0.5 for kind in ("uniform", "local", "test_split")}
    for number, mu in enumerate(("0.01", "0.1")):
        overrides = ["regularizer=proximal", f"regularizer.mu={mu}", f"seed={number}"]
        write_job(tmp_path / str(number), overrides, {"global/accuracy": 0.5} | finals)
    end(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    table = [line for line in lines if not line.startswith("Also in")]
    assert max(map(len, table)) <= columns
    assert any("regularizer.mu=0.01" in line for line in table)


@pytest.mark.parametrize(
    ("jobs", "labels"),
    [
        ([["seed=0"], ["++seed=1"]], ["default", "default"]),
        ([["a=1", "seed=0"], ["a=1", "seed=1"]], ["a=1", "a=1"]),
        ([["a=1", "b=1"], ["a=1", "b=2"], ["a=2", "b=2"]], ["a=1 b=1", "a=1 b=2", "a=2 b=2"]),
        ([["c=0", "a=[1,2]"], ["c=0", "a=3"]], ["a=[1,2]", "a=3"]),
    ],
)
def test_configurations_are_what_differs(
    tmp_path: Path, jobs: list[list[str]], labels: list[str]
) -> None:
    for number, overrides in enumerate(jobs):
        write_job(tmp_path / str(number), overrides, {"global/accuracy": 0.5})
    finals, failed = collect(tmp_path)
    assert finals.index.tolist() == labels
    assert failed == []


def test_jobs_are_in_the_order_they_were_launched(tmp_path: Path) -> None:
    for number in range(12):
        write_job(tmp_path / str(number), [f"a={number}"], {"global/accuracy": 0.5})
    finals, _ = collect(tmp_path)
    assert finals.index.tolist() == [f"a={number}" for number in range(12)]


def test_one_seed_has_no_deviation_and_a_diverged_one_is_not_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(tmp_path / "0", ["a=1", "seed=0"], {"global/loss": 1.0, "global/accuracy": 0.25})
    write_job(tmp_path / "1", ["a=2", "seed=0"], {"global/loss": 1.0})
    write_job(tmp_path / "2", ["a=2", "seed=1"], {"global/loss": None})
    table = aggregate(collect(tmp_path)[0])
    assert table["global/loss/mean"].isna().tolist() == [False, True]
    assert table["global/loss/std"].isna().tolist() == [True, True]

    end(tmp_path)
    printed = capsys.readouterr().out
    assert "0.250" in printed
    assert "±" not in printed
    assert "nan" not in printed


def test_rounds_to_a_target_never_average_over_the_seeds_that_made_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: dict[str, list[float | None]] = {
        "a=1": [10, 20, 30],  # mean 20, standard deviation 10
        "a=2": [4, None, 7],
        "a=3": [None, None, None],
    }
    jobs = [(name, seed) for name in rounds for seed in range(3)]
    for number, (name, seed) in enumerate(jobs):
        finals: dict[str, float | None] = {"global/accuracy": 0.5, "personal/accuracy_local": 0.5}
        if (reached := rounds[name][seed]) is not None:
            finals["rounds_to/0.6"] = reached
        write_job(tmp_path / str(number), [name, f"seed={seed}"], finals)
    end(tmp_path)
    table = pd.read_csv(tmp_path / "sweep.csv", index_col="configuration")
    assert table["rounds_to/0.6/reached"].tolist() == [3, 2, 0]
    assert table["rounds_to/0.6/mean"].isna().tolist() == [False, True, True]
    assert table.loc["a=1", "rounds_to/0.6/mean"] == 20
    assert table.loc["a=1", "rounds_to/0.6/std"] == 10

    lines = capsys.readouterr().out.splitlines()
    rows = {
        cells[1].strip(): [cell.strip() for cell in cells[2:-1]]
        for cells in (line.split("│") for line in lines)
        if cells[0] == "" and len(cells) > 3 and "a=" in cells[1]
    }
    # seeds, global accuracy, rounds to 0.6, and only then the personal accuracy
    assert rows == {
        "a=1": ["3", "0.500 ± 0.000", "20.0 ± 10.0", "0.500 ± 0.000"],
        "a=2": ["3", "0.500 ± 0.000", "2 of 3", "0.500 ± 0.000"],
        "a=3": ["3", "0.500 ± 0.000", "", "0.500 ± 0.000"],
    }


def test_import_stays_light() -> None:
    heavy = "{'torch', 'pandas', 'wandb', 'matplotlib', 'rich'} & set(sys.modules)"
    code = f"import sys, fedexp.tracking.sweep; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
