"""The report of a factorial experiment, from run folders that are written by hand."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from support.run_files import write_run

from fedexp.cli.report import main
from fedexp.errors import InputError
from fedexp.reporting.factorial.design import Design
from fedexp.reporting.factorial.report import FactorialReport
from fedexp.reporting.leaderboard.earlier import earlier_scores
from fedexp.reporting.leaderboard.tuning import Tuning

NODE: dict[str, Any] = {
    "factors": {
        "head": [{"head": "linear"}, {"head": "prototype"}],
        "loss": [{"loss": "cross_entropy"}, {"loss": "rpcl_cpdr"}],
    },
    "generators": {},
}
TUNE = {
    "seed": "900,901",
    "budgets": [2],
    "statistic": "mean_last5",
    "common": {"optimizer.lr": "0.1"},
    "own": {},
}
GAIN = {"prototype": 0.1, "rpcl_cpdr": -0.02}


def write_sweep(
    folder: Path, cell: str, seeds: tuple[int, ...], node: Any = NODE, typed: tuple[str, ...] = ()
) -> Path:
    """The runs of a cell: the accuracies add up, and seeds differ by a hundredth.

    With ``head=prototype`` the trials choose ``optimizer.lr=0.1``, which costs nothing in the test.
    """
    design = Design.read(node)
    assert design is not None
    for number, part in enumerate(design.parts()):
        words = [*typed, *(f"{key}={value}" for key, value in part.items())]
        accuracy = 0.5 + sum(GAIN.get(each, 0.0) for each in part.values())
        best = part["head"] == "prototype"
        for trial, setting in enumerate([[], ["optimizer.lr=0.1"]]):
            for seed in (900, 901):
                score = 0.4 + 0.1 * (trial == best)
                write(folder / f"trial{number}_{trial}_{seed}", cell, words, setting, seed, score)
        for seed in seeds:
            setting = ["optimizer.lr=0.1"] if best else []
            value = accuracy + 0.01 * seed
            write(folder / f"{number}_{seed}", cell, words, setting, seed, 0.5, value)
    saved = {"hydra": {"sweeper": {"factorial": node, "tune": TUNE}}}
    (folder / "multirun.yaml").write_text(yaml.safe_dump(saved))
    return folder


def write(
    folder: Path,
    cell: str,
    words: list[str],
    setting: list[str],
    seed: int,
    score: float,
    value: float = 0.5,
) -> None:
    row = {"global/accuracy": value, "validation/accuracy": score}
    overrides = [f"experiment=factorial/{cell}", "algorithm=fedavg", *words, *setting]
    overrides.append(f"seed={seed}")
    choices = {"experiment": f"factorial/{cell}"}
    history = [{**row, "validation/accuracy": 0.9}] + [row] * 5
    objective = "validation/accuracy"
    write_run(folder, overrides, history, choices=choices, seed=seed, objective=objective)


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells; one of them is in two folders."""
    folder = tmp_path_factory.mktemp("sweeps")
    write_sweep(folder / "a", "steep", (0, 1))
    write_sweep(folder / "b", "flat", (0,))
    write_sweep(folder / "c", "flat", (1, 2))
    return folder


def test_effects_of_each_cell(sweeps: Path) -> None:
    made = FactorialReport.read([sweeps])
    assert {cell: fit.seeds for cell, fit in made.fits.items()} == {"steep": 2, "flat": 3}
    for fit in made.fits.values():
        assert fit.estimates.tolist() == pytest.approx([0.1, -0.02, 0], abs=1e-12)
    assert made.problems == []
    first, *_ = made.tables()
    assert first.title == "steep: which part to add first"
    assert [row[0] for row in first.rows] == ["head=prototype", "loss=rpcl_cpdr"]
    assert first.rows[0][1].startswith("+0.1000 ± 0.0000")


def test_one_seed_has_no_deviation_of_seeds(tmp_path: Path) -> None:
    """With three factors one seed leaves a degree of freedom for the residuals."""
    third = {**NODE["factors"], "sampler": [{"sampler": "random"}, {"sampler": "hics"}]}
    folder = write_sweep(tmp_path, "steep", (0,), {"factors": third, "generators": {}})
    first, *_ = FactorialReport.read([folder]).tables()
    noise = "Residual deviation 0.0000, one seed: a main effect of 0.0000 is shown with a prob"
    assert first.notes[-1].startswith(noise)


def test_the_best_loss_is_the_smallest(tmp_path: Path) -> None:
    """The accuracies of the sweep as losses: a part that raises them comes last."""
    folder = write_sweep(tmp_path, "steep", (0, 1))
    for path in folder.glob("*/metrics.jsonl"):
        rows = [json.loads(line.replace("accuracy", "loss")) for line in path.open()]
        rows[0]["global/loss"] = 9.0
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    made = FactorialReport.read([folder], "global/loss", "best")
    assert made.fits["steep"].estimates.tolist() == pytest.approx([0.1, -0.02, 0], abs=1e-12)
    first, *_ = made.tables()
    assert [row[0] for row in first.rows] == ["loss=rpcl_cpdr", "head=prototype"]


def test_the_chosen_settings_and_the_noise_of_their_trials(sweeps: Path) -> None:
    made = FactorialReport.read([sweeps])
    chosen = made.found.chosen
    assert set(chosen.loc[chosen["head"] == "high", "setting"]) == {"optimizer.lr=0.1"}
    assert set(chosen.loc[chosen["head"] == "low", "setting"]) == {""}
    assert chosen["score"].tolist() == pytest.approx([0.5] * 8)
    assert made.pilots["steep"].seeds == 2
    assert "steep: the trials with the chosen settings have a residual deviation of 0.0000" in (
        " ".join(made.heading)
    )


def test_a_setting_that_more_trials_did_not_choose_is_left_out(tmp_path: Path) -> None:
    """Final runs of another setting, which a smaller budget or fewer trials had chosen."""
    folder = write_sweep(tmp_path / "a", "steep", (0, 1))
    words = ["head=linear", "loss=cross_entropy"]
    for number in (0, 99):  # before and behind the run of the chosen setting
        other = folder / f"0_{number}_other"
        write(other, "steep", words, ["optimizer.lr=0.1"], number % 98, 0.5, 0.9)
    fit = FactorialReport.read([folder]).fits["steep"]
    assert fit.seeds == 2
    assert fit.estimates.tolist() == pytest.approx([0.1, -0.02, 0], abs=1e-12)
    shutil.rmtree(folder / "0_1")  # seed 1 has run with the other setting only
    assert FactorialReport.read([folder]).fits["steep"].seeds == 1


def test_a_combination_whose_trials_have_all_failed_is_named(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, "steep", (0, 1))
    for trial in folder.glob("trial0_*_900"):
        shutil.rmtree(trial)
    *_, chosen = FactorialReport.read([folder]).tables()
    assert chosen.rows[0] == ["steep", "- -", "as in the preset", "failed"]
    assert any(note.startswith("failed: each setting lacks a trial") for note in chosen.notes)


def test_an_experiment_without_trials_has_effects(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path, "steep", (0, 1))
    for trial in folder.glob("trial*"):
        shutil.rmtree(trial)
    made = FactorialReport.read([folder])
    assert made.fits["steep"].seeds == 2
    assert {"chosen", "trials"}.isdisjoint(made.frames)


def test_a_seed_without_all_combinations_is_left_out(tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "a", "steep", (0, 1, 2))
    (folder / "3_1" / "summary.json").unlink()
    (folder / "3_1" / "metrics.jsonl").write_text('{"round": 1, "global/accuracy": 0.5}\n')
    made = FactorialReport.read([folder])
    assert made.fits["steep"].seeds == 2
    left_out, reason = made.problems
    assert left_out.startswith(str(folder / "3_1"))
    assert reason == "steep: seed 1 is left out: of 4 combinations, 4 have no value"


def test_the_command_writes_tables_numbers_and_pictures(
    sweeps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([str(sweeps), "--factorial", "--statistic", "mean_last5", "--to", str(tmp_path)])
    said = capsys.readouterr().out
    assert said.startswith("factorial: head, loss; 4 of 4 combinations\n")
    assert "flat: which part to add first" in said
    names = {path.name for path in tmp_path.iterdir()}
    pictures = {f"{kind}_{cell}.png" for kind in ("effects", "interactions") for cell in CELLS}
    frames = {f"{name}.csv" for name in ("runs", "trials", "chosen", "effects", "alone")}
    assert names == {"factorial.md", *pictures, *frames}
    assert len(pd.read_csv(tmp_path / "runs.csv")) == 4 * 5


CELLS = ("steep", "flat")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["--baseline", "head=linear"], "--baseline: not with --factorial"),
        (["--metrics", "a,b"], "--metrics: --factorial analyses one metric"),
        (["--metrics", "a"], "--factorial: no finished run has a with statistic=final"),
    ],
)
def test_other_options_are_refused(
    typed: list[str], message: str, sweeps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([str(sweeps), "--factorial", *typed])
    assert message in f"{exit_.value} {capsys.readouterr().err}"


def test_other_runs_are_no_factorial_experiment(sweeps: Path, tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"--factorial: no factorial experiment is there$"):
        FactorialReport.read([tmp_path])
    third = {**NODE["factors"], "sampler": [{"sampler": "random"}, {"sampler": "hics"}]}
    write_sweep(tmp_path / "third", "steep", (0,), {"factors": third, "generators": {}})
    with pytest.raises(InputError, match=r"third have different factors$"):
        FactorialReport.read([sweeps, tmp_path])


def test_sweeps_that_were_tuned_in_different_ways_are_not_joined(
    sweeps: Path, tmp_path: Path
) -> None:
    other = write_sweep(tmp_path / "other", "steep", (2,))
    saved = (other / "multirun.yaml").read_text()
    (other / "multirun.yaml").write_text(saved.replace("- 2\n", "- 1\n"))
    with pytest.raises(InputError, match=r"a and .*other were tuned in different ways$"):
        FactorialReport.read([sweeps / "a", other])


def test_a_report_stands_for_its_sweeps(sweeps: Path, tmp_path: Path) -> None:
    """The tables of one cell and the sweep of the other give what both sweeps give."""
    half = FactorialReport.read([sweeps / "b", sweeps / "c"])
    half.write(tmp_path / "half")
    joined = FactorialReport.read([sweeps / "a", tmp_path / "half"])
    whole = FactorialReport.read([sweeps])
    assert {*joined.fits} == {"steep", "flat"}
    for name, frame in whole.frames.items():
        keys = [each for each in ("cell", "combination", "effect", "factor") if each in frame]
        keys += [each for each in ("seed", "trial") if each in frame]
        expected = frame.sort_values(keys).reset_index(drop=True)
        found = joined.frames[name].sort_values(keys).reset_index(drop=True)
        pd.testing.assert_frame_equal(found[[*expected]], expected, check_dtype=False)


def test_a_report_counts_beside_a_sweep_without_a_finished_run(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", "steep", (0, 1))
    whole = FactorialReport.read([sweep])
    whole.write(tmp_path / "report")
    for path in sweep.glob("*/metrics.jsonl"):
        path.write_text(path.read_text().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="no finished run has global/accuracy"):
        FactorialReport.read([sweep])
    joined = FactorialReport.read([sweep, tmp_path / "report"])
    pd.testing.assert_frame_equal(joined.frames["effects"], whole.frames["effects"])


def test_a_run_of_a_sweep_counts_before_its_row_in_a_table(sweeps: Path, tmp_path: Path) -> None:
    FactorialReport.read([sweeps / "a"]).write(tmp_path)
    runs = pd.read_csv(tmp_path / "runs.csv")
    runs.assign(value=0.0).to_csv(tmp_path / "runs.csv", index=False)
    joined = FactorialReport.read([tmp_path, sweeps / "a"])
    pd.testing.assert_frame_equal(
        joined.frames["effects"], FactorialReport.read([sweeps / "a"]).frames["effects"]
    )


def test_the_trials_of_a_report_are_not_repeated(sweeps: Path, tmp_path: Path) -> None:
    FactorialReport.read([sweeps / "a"]).write(tmp_path)
    by_report = earlier_scores(Tuning.read({**TUNE, "earlier": [tmp_path]}))
    by_sweep = earlier_scores(Tuning.read({**TUNE, "earlier": [sweeps / "a"]}))
    assert by_report == pytest.approx(by_sweep)
    assert len(by_report) == 16


def test_a_report_of_another_design_is_refused(sweeps: Path, tmp_path: Path) -> None:
    FactorialReport.read([sweeps / "a"]).write(tmp_path)
    runs = pd.read_csv(tmp_path / "runs.csv")
    runs.replace({"head": {"high": "other"}}).to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(InputError, match=r"\('other', 'high'\) is no combination of this design"):
        FactorialReport.read([sweeps / "a", tmp_path])
    runs.drop(columns="head").to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(InputError, match=r"runs.csv: has no column head"):
        FactorialReport.read([sweeps / "a", tmp_path])
    runs.drop(columns="metric").to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(InputError, match=r"runs.csv: has no column metric"):
        FactorialReport.read([sweeps / "a", tmp_path])
    (tmp_path / "runs.csv").write_text("")
    with pytest.raises(InputError, match=r"runs.csv: cannot be read"):
        FactorialReport.read([sweeps / "a", tmp_path])


def test_values_of_another_metric_or_statistic_are_not_joined(sweeps: Path, tmp_path: Path) -> None:
    FactorialReport.read([sweeps / "a"], statistic="mean_last5").write(tmp_path)
    with pytest.raises(InputError, match=r"runs.csv: its statistic is mean_last5, not final$"):
        FactorialReport.read([sweeps / "b", tmp_path])
    with pytest.raises(InputError, match=r"its metric is global/accuracy, not validation/accura"):
        FactorialReport.read([sweeps / "b", tmp_path], "validation/accuracy", "mean_last5")
    with pytest.raises(InputError, match=r"trials.csv: its scores are mean_last5, not final$"):
        earlier_scores(Tuning.read({**TUNE, "earlier": [tmp_path], "statistic": "final"}))


def test_a_cell_of_a_report_gets_further_seeds_from_a_sweep_of_this_cell(tmp_path: Path) -> None:
    """Alone, the sweep's cell would be named by its experiment."""
    for beta in (0.1, 1):
        folder = tmp_path / "sweeps" / str(beta)
        write_sweep(folder, "mine", (0, 1), typed=(f"partition.beta={beta}",))
    FactorialReport.read([tmp_path / "sweeps"]).write(tmp_path / "to")
    more = write_sweep(tmp_path / "more", "mine", (2,), typed=("partition.beta=0.1",))
    joined = FactorialReport.read([more, tmp_path / "to"])
    found = {cell: fit.seeds for cell, fit in joined.fits.items()}
    assert found == {"partition.beta=0.1": 3, "partition.beta=1": 2}
    # Also if each report has one cell, whose name is that of the experiment.
    for beta in (0.1, 1):
        FactorialReport.read([tmp_path / "sweeps" / str(beta)]).write(tmp_path / f"to{beta}")
    joined = FactorialReport.read([more, tmp_path / "to0.1", tmp_path / "to1"])
    assert {cell: fit.seeds for cell, fit in joined.fits.items()} == found


def test_a_report_without_trials_joins_but_gives_no_scores(sweeps: Path, tmp_path: Path) -> None:
    half = FactorialReport.read([sweeps / "b"])
    half.write(tmp_path)
    (tmp_path / "trials.csv").unlink()
    joined = FactorialReport.read([sweeps / "a", tmp_path])
    assert {*joined.fits} == {"steep", "flat"}
    with pytest.raises(InputError, match=r"trials.csv: does not exist; its experiment had no tr"):
        earlier_scores(Tuning.read({**TUNE, "earlier": [tmp_path]}))


def test_a_report_alone_has_no_design(sweeps: Path, tmp_path: Path) -> None:
    FactorialReport.read([sweeps / "a"]).write(tmp_path)
    with pytest.raises(InputError, match=r"a report's tables without their design; name a sweep"):
        FactorialReport.read([tmp_path])


def test_a_report_without_overrides_cannot_give_scores(sweeps: Path, tmp_path: Path) -> None:
    FactorialReport.read([sweeps / "a"]).write(tmp_path)
    trials = pd.read_csv(tmp_path / "trials.csv")
    trials.drop(columns="overrides").to_csv(tmp_path / "trials.csv", index=False)
    with pytest.raises(InputError, match=r"trials.csv: has no column overrides"):
        earlier_scores(Tuning.read({**TUNE, "earlier": [tmp_path]}))
