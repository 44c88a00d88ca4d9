import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from omegaconf import OmegaConf
from support.run_files import accuracies, write_run

from fedexp.cli.callbacks import SweepTable
from fedexp.reporting.sweep import FAILED, UNFINISHED
from fedexp.runtime import limits
from fedexp.state import failed_jobs


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Two configurations, three seeds."""
    finals = {"fedavg": (0.5, 0.6, 0.7), "fedprox": (0.8, 0.8, 0.8)}
    jobs = [(name, seed) for name in finals for seed in range(3)]
    for number, (name, seed) in enumerate(jobs):
        overrides = ["clients.count=5", f"algorithm={name}", f"seed={seed}"]
        accuracy = finals[name][seed]
        history = [{"global/accuracy": accuracy, "global/loss": 1 - accuracy}]
        write_run(tmp_path / str(number), overrides, history)
    return tmp_path


def fail(folder: Path, *overrides: str) -> None:
    """A job that stopped before its first round."""
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text(str(list(overrides)))


def end(folder: Path, sweeper: str = "tables", tune: Any = None) -> None:
    hydra: dict[str, Any] = {"sweep": {"dir": str(folder)}, "job": {"name": "fedexp"}}
    hydra["sweeper"] = {"tune": tune}
    hydra["runtime"] = {"choices": {"hydra/sweeper": sweeper}}
    SweepTable().on_multirun_end(OmegaConf.create({"hydra": hydra, "objective": "global/loss"}))


def test_mean_and_sample_deviation_over_seeds(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(sweep)
    table = pd.read_csv(sweep / "sweep.csv", index_col="configuration")
    # Of 0.5, 0.6, 0.7: mean 0.6, variance (0.01 + 0 + 0.01) / 2.
    expected = pd.DataFrame(
        {
            "algorithm": ["fedavg", "fedprox"],
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
    assert "0.6000 ± 0.1000" in printed
    assert "0.8000 ± 0.0000" in printed
    assert "loss" not in printed
    assert str(sweep / "sweep.csv") in printed
    assert "Failed" not in printed


def test_previews_of_the_partition_are_no_failed_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for job in ("0", "1"):
        fail(tmp_path / job)
        (tmp_path / job / "partition.csv").touch()
    end(tmp_path)  # raises SystemExit after a failed job
    assert capsys.readouterr().out == ""
    (tmp_path / "1" / "run.json").touch()  # a damaged run has failed
    with pytest.raises(SystemExit, match="1"):
        end(tmp_path)
    assert capsys.readouterr().out.startswith(f"Failed: {tmp_path / '1'};")


def test_a_search_shows_its_objective_alone(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end(sweep, "optuna")
    printed = capsys.readouterr().out
    assert "0.4000 ± 0.1000" in printed
    assert "accuracy" not in printed


def test_a_failed_job_is_named_and_does_not_count(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(sweep / "10", "algorithm=fedavg", "seed=3")
    write_run(sweep / "11", ["algorithm=fedavg", "seed=4"], finished=False)
    with pytest.raises(SystemExit, match="1"):
        end(sweep)
    assert pd.read_csv(sweep / "sweep.csv")["seeds"].tolist() == [3, 3]
    said = capsys.readouterr().out
    for job in ("10", "11"):
        assert f"Failed: {sweep / job}; fedexp.log there says why\n" in said


def test_a_failed_job_does_not_count_with_the_run_of_an_earlier_start(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed_jobs.record(sweep, 1, sweep / "1")
    with pytest.raises(SystemExit, match="1"):
        end(sweep)
    assert pd.read_csv(sweep / "sweep.csv")["seeds"].tolist() == [2, 3]
    assert f"Failed: {sweep / '1'}; fedexp.log there says why\n" in capsys.readouterr().out


def test_the_next_start_forgets_failed_jobs(sweep: Path) -> None:
    failed_jobs.record(sweep, 1, sweep / "1")
    SweepTable().on_multirun_start(OmegaConf.create({"hydra": {"sweep": {"dir": str(sweep)}}}))
    end(sweep)
    assert pd.read_csv(sweep / "sweep.csv")["seeds"].tolist() == [3, 3]


def test_a_contest_repeated_with_its_choices_has_no_trials_that_may_fail(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(sweep / "10", "algorithm=fedavg", "seed=900")
    with pytest.raises(SystemExit, match=f"^{FAILED}$"):
        end(sweep, tune={"budgets": [1], "chosen": "contest"})
    assert f"Failed: {sweep / '10'};" in capsys.readouterr().out


def test_a_contest_may_have_failed_trials_but_no_unfinished_ones(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(sweep / "10", "algorithm=fedavg", "seed=900")
    end(sweep, tune={"budgets": [1]})
    said = capsys.readouterr().out
    assert f"Failed: {sweep / '10'}; fedexp.log there says why\nfedexp-leaderboard " in said
    assert not (sweep / "sweep.csv").exists()
    with monkeypatch.context() as patched:
        patched.setattr(limits.Sweep, "has_left_jobs", True)
        with pytest.raises(SystemExit, match="75"):
            end(sweep, tune={"budgets": [1]})
    write_run(sweep / "11", ["seed=901"], [{"global/accuracy": 0.5}], rounds=2)
    with pytest.raises(SystemExit, match="75"):
        end(sweep, tune={"budgets": [1]})


def test_all_failed_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fail(tmp_path / "0", "seed=0")
    with pytest.raises(SystemExit):
        end(tmp_path)
    assert not (tmp_path / "sweep.csv").exists()
    said = capsys.readouterr().out
    assert said == f"Failed: {tmp_path / '0'}; fedexp.log there says why\n"


def test_runs_without_headlines_are_no_table_and_the_exit_code_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "0", history=[{"cost/upload_bytes": 1.0}], rounds=2)
    with pytest.raises(SystemExit, match=f"^{UNFINISHED}$"):
        end(tmp_path)
    said = capsys.readouterr().out
    assert said == f"{tmp_path}: no table, as no run measured a headline metric\n"
    fail(tmp_path / "1", "seed=1")
    with pytest.raises(SystemExit, match=f"^{FAILED}$"):
        end(tmp_path)
    assert not (tmp_path / "sweep.csv").exists()
    assert f"Failed: {tmp_path / '1'};" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_table_fits_the_terminal_and_never_cuts_a_configuration(
    tmp_path: Path,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    row = {f"personal/accuracy_{kind}": 0.5 for kind in ("uniform", "local", "test_split")}
    for number, rho in enumerate(("0.01", "0.1")):
        overrides = [f"head.rho={rho}", f"seed={number}"]
        write_run(tmp_path / str(number), overrides, [{"global/accuracy": 0.5} | row])
    end(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    table = lines[: next(n for n, line in enumerate(lines) if "0.1 " in line) + 1]
    assert max(len(line.rstrip()) for line in table) <= columns
    assert any("0.01" in line for line in table)


def test_one_seed_has_no_deviation_and_a_diverged_one_is_not_hidden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = "global/loss"
    write_run(tmp_path / "0", ["head.rho=1", "seed=0"], [{loss: 1.0, "global/accuracy": 0.25}])
    write_run(tmp_path / "1", ["head.rho=2", "seed=0"], [{loss: 1.0}])
    write_run(tmp_path / "2", ["head.rho=2", "seed=1"], [{loss: None}])
    end(tmp_path)
    table = pd.read_csv(tmp_path / "sweep.csv", index_col="configuration")
    assert table["global/loss/mean"].isna().tolist() == [False, True]
    assert table["global/loss/std"].isna().tolist() == [True, True]
    printed = capsys.readouterr().out
    assert "0.2500" in printed
    assert "nan" not in printed


def test_seeds_that_missed_a_target_count_with_all_their_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds: dict[str, list[int | None]] = {
        "head.rho=1": [1, 2, 3],  # mean 2, standard deviation 1
        "head.rho=2": [4, None, 2],
        "head.rho=3": [None, None, None],
    }
    jobs = [(name, seed) for name in rounds for seed in range(3)]
    measure = {"global": {"every": 1, "targets": [0.6]}}
    for number, (name, seed) in enumerate(jobs):
        reached = rounds[name][seed]
        values = [0.7 if reached and n >= reached else 0.5 for n in range(1, 5)]
        overrides = [name, f"seed={seed}"]
        write_run(tmp_path / str(number), overrides, accuracies(*values), measure=measure)
    end(tmp_path)
    table = pd.read_csv(tmp_path / "sweep.csv", index_col="configuration")
    assert table["rounds_to/0.6/reached"].tolist() == [3, 2, 0]
    assert table["rounds_to/0.6/mean"].tolist() == pytest.approx([2, (4 + 4 + 2) / 3, 4])
    assert table.loc["head.rho=1", "rounds_to/0.6/std"] == 1
    said = capsys.readouterr().out
    assert "2 ± 1" in said
    assert ">= 3.3 (1 of 3)" in said
    assert ">= 4 (3 of 3)" in said


def test_import_stays_light() -> None:
    heavy = "{'torch', 'pandas', 'wandb', 'matplotlib', 'rich'} & set(sys.modules)"
    code = f"import sys, fedexp.cli.callbacks; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
