"""The results of a contest, read from run folders; nothing is trained."""

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.run_files import write_run

from fedexp.errors import InputError
from fedexp.reporting.leaderboard.earlier import earlier_scores
from fedexp.reporting.leaderboard.entries import Entry, with_entries
from fedexp.reporting.leaderboard.files import pictures, read_contest, read_csv, write
from fedexp.reporting.leaderboard.page import page
from fedexp.reporting.leaderboard.results import best, read_results, tuning_of

SWEEP = "hydra: {sweeper: {tune: {seed: null, budgets: [], common: {}, own: {}}}}"


def write_sweep(folder: Path, *methods: str, saved: str = SWEEP) -> Path:
    """A sweep with one run of each method."""
    for number, method in enumerate(methods):
        overrides = ["experiment=cells/digits_a", *method.split()]
        write_run(folder / str(number), overrides, choices={"experiment": "cells/digits_a"})
    (folder / "multirun.yaml").write_text(saved)
    return folder


def test_final_runs_of_several_settings_need_their_trials(tmp_path: Path) -> None:
    """``tune.earlier`` leaves the trials of a later sweep in another folder."""
    folder = write_contest(tmp_path / "later", "fedavg", 100)
    for trial in folder.glob("*_100"):
        shutil.rmtree(trial)
    with pytest.raises(InputError, match="fedavg in digits_a: has run with several settings"):
        read_contest([folder])
    earlier = write_contest(tmp_path / "earlier", "fedavg", 100)
    assert set(best(read_contest([folder, earlier])[0])["setting"]) == {"optimizer.lr=0.1"}


def test_a_method_whose_trials_are_in_an_earlier_sweep_is_named(tmp_path: Path) -> None:
    later = write_contest(tmp_path / "later", "fedavg", 100)
    for trial in later.glob("*_100"):
        shutil.rmtree(trial)
    write_contest(later / "new", "fednh", 100)
    results, problems = read_contest([later])
    assert set(best(results)["method"]) == {"fednh"}
    (line,) = problems
    assert line.startswith(
        "fedavg in digits_a: the final runs with the preset and optimizer.lr=0.1 are left out"
    )
    assert "hydra.sweeper.tune.earlier" in line
    earlier = write_contest(tmp_path / "earlier", "fedavg", 100)
    results, problems = read_contest([later, earlier])
    assert set(best(results)["method"]) == {"fedavg", "fednh"}
    assert problems == []


def test_a_sweep_of_one_option_keeps_its_name_beside_other_sweeps(tmp_path: Path) -> None:
    whole = write_sweep(tmp_path / "1", "algorithm=fedavg", "algorithm=fednh")
    later = write_sweep(tmp_path / "2", "algorithm=fednh sampler=hics tracking=quiet")
    results, problems = read_results([whole, later])
    assert list(results["method"]) == ["fedavg", "fednh", "fednh sampler=hics"]
    assert problems == []


def test_a_sweep_of_one_option_keeps_its_name_beside_a_table(tmp_path: Path) -> None:
    """But not an option of all cells, such as data."""
    common = "data=digits"
    both = f"algorithm=fedavg {common}", f"algorithm=fednh {common}"
    write(read_results([write_sweep(tmp_path / "1", *both)])[0], tmp_path / "to")
    later = write_sweep(tmp_path / "2", f"algorithm=fednh sampler=hics {common}")
    joined, _ = read_contest([later, tmp_path / "to" / "leaderboard.csv"])
    assert list(joined["method"]) == ["fedavg", "fednh", "fednh sampler=hics"]


def test_an_entry_of_one_option_keeps_its_name_beside_the_contest(tmp_path: Path) -> None:
    """But an option that the contest shares is not in the names of either."""
    common = "aggregator=uniform"
    rows = f"algorithm=fedavg {common}", f"algorithm=fednh {common}"
    contest = write_sweep(tmp_path / "1", *rows)
    results, _ = read_results([contest])
    write(results, tmp_path / "to")
    table = tmp_path / "to" / "leaderboard.csv"
    entry = write_sweep(tmp_path / "2", f"algorithm=fednh sampler=hics {common}")
    again = write_sweep(tmp_path / "3", rows[1])
    entries = [Entry(f"{each.name}.zip", "0", each, "all", "me") for each in (entry, again)]
    joined, listed, left_out = with_entries(results, [contest], entries)
    assert list(joined["method"]) == ["fedavg", "fednh", "fednh sampler=hics [1]"]
    assert listed is not None
    assert [row[1] for row in listed.rows] == ["2.zip"]
    assert left_out == ["3.zip: left out: the contest has runs of all of its methods"]
    # Beside a table, every option is in the names.
    results, _ = read_contest([contest, table])
    joined, _, _ = with_entries(results, [contest, table], entries[1:])
    assert {*joined["method"]} == {"fedavg", "fednh", f"fedavg {common}", f"fednh {common}"}


def test_an_entry_is_checked_where_the_contest_has_its_trials_in_a_table(tmp_path: Path) -> None:
    contest = write_contest(tmp_path / "contest", "fedavg", 100)
    write(read_contest([contest])[0], tmp_path / "to")
    table = tmp_path / "to" / "leaderboard.csv"
    for trial in contest.glob("*_100"):
        shutil.rmtree(trial)
    entry = Entry("e.zip", "0", write_contest(tmp_path / "e", "mine", 100), "all", "me")
    results, _ = read_contest([contest, table])
    joined, _, left_out = with_entries(results, [contest, table], [entry])
    assert left_out == []
    write(joined, tmp_path / "both")
    other = Entry("f.zip", "0", write_contest(tmp_path / "f", "other", 100), "all", "me")
    both = [contest, tmp_path / "both" / "leaderboard.csv"]
    again, _, _ = with_entries(read_contest(both)[0], both, [other])
    assert {"mine [1]", "other [2]"} < {*again["method"]}


def test_an_entry_has_the_names_of_the_table_that_is_repeated(tmp_path: Path) -> None:
    common = "sampler=hics"
    rows = f"algorithm=fedavg {common}", f"algorithm=fednh {common}"
    before, _ = read_results([write_sweep(tmp_path / "0", *rows, "algorithm=fedavg")])
    contest = write_sweep(tmp_path / "1", *rows)
    results, _ = read_contest([contest], before)
    mine = write_sweep(tmp_path / "2", rows[0], f"algorithm=mine {common}")
    joined, _, _ = with_entries(results, [contest], [Entry("e.zip", "0", mine, "all", "me")])
    assert {*joined["method"]} == {*results["method"], f"mine {common} [1]"}


def test_a_repeated_option_keeps_its_name_in_the_earlier_results(tmp_path: Path) -> None:
    rows = "algorithm=fednh", "algorithm=fednh sampler=hics"
    before, _ = read_results([write_sweep(tmp_path / "1", *rows)])
    now, _ = read_contest([write_sweep(tmp_path / "2", rows[1])], before)
    assert list(now["method"]) == ["fednh sampler=hics"]
    other, _ = read_contest([write_sweep(tmp_path / "3", "algorithm=fednh loss=moon")], before)
    assert list(other["method"]) == ["fednh"]  # as in ``tune.chosen``


def test_without_budgets_the_seed_of_trials_is_a_seed_like_others(tmp_path: Path) -> None:
    saved = SWEEP.replace("seed: null", "seed: 0")
    results, problems = read_results([write_sweep(tmp_path, "algorithm=fedavg", saved=saved)])
    assert (list(results["trial"]), problems) == ([0], [])


def test_methods_that_differ_in_a_value_have_two_names(tmp_path: Path) -> None:
    rows = "algorithm=fedavg", "algorithm=fednh head.rho=0.5", "algorithm=fednh"
    results, _ = read_results([write_sweep(tmp_path / "1", *rows)])
    assert list(results["method"]) == ["fedavg", "fednh", "fednh head.rho=0.5"]
    results, _ = read_results([write_sweep(tmp_path / "2", *rows[:2])])
    assert list(results["method"]) == ["fedavg", "fednh"]


def write_contest(folder: Path, method: str, *seeds: int, shared: str = "") -> Path:
    """A sweep with trials of the preset and of a better learning rate, and final runs of both."""
    choices, objective = {"experiment": "cells/digits_a"}, "validation/accuracy"
    for n, setting in enumerate(([], ["optimizer.lr=0.1"])):
        history = [{"global/accuracy": 0.5 + 0.2 * n, objective: 0.4 + 0.2 * n}]
        for seed in (*seeds, 0, 1):
            words = ["experiment=cells/digits_a", f"algorithm={method}", *shared.split()]
            words += [*setting, f"seed={seed}"]
            run = folder / f"{n}_{seed}"
            write_run(run, words, history, choices=choices, objective=objective)
    tune = {"seed": list(seeds), "budgets": [1, 2], "common": {"optimizer.lr": [0.1]}, "own": {}}
    (folder / "multirun.yaml").write_text(yaml.safe_dump({"hydra": {"sweeper": {"tune": tune}}}))
    return folder


def test_methods_that_were_tuned_with_other_seeds_are_not_joined(tmp_path: Path) -> None:
    """Else the trials of one method would count as failed, and its preset as the best setting."""
    one = write_contest(tmp_path / "1", "fedavg", 100)
    two = write_contest(tmp_path / "2", "fednh", 100, 101)
    message = (
        r"fedavg in digits_a: its trials have the seeds \[100\], all trials together \[100, 101"
    )
    with pytest.raises(InputError, match=message):
        read_contest([one, two])
    write(read_contest([one])[0], tmp_path / "to")
    with pytest.raises(InputError, match=message):
        read_contest([two, tmp_path / "to" / "leaderboard.csv"])
    same = write_contest(tmp_path / "3", "fednh", 100)
    joined, _ = read_contest([same, tmp_path / "to" / "leaderboard.csv"])
    assert best(joined)["setting"].unique().tolist() == ["optimizer.lr=0.1"]
    # A sweep with the trials that lack.
    later = write_contest(tmp_path / "4", "fedavg", 101)
    assert set(best(read_contest([one, two, later])[0])["method"]) == {"fedavg", "fednh"}


def test_a_later_contest_takes_the_trials_of_a_table(tmp_path: Path) -> None:
    """Without the files of the runs that the table was made of."""
    contest = write_contest(tmp_path / "contest", "fedavg", 100)
    write(read_contest([contest])[0], folder := tmp_path / "to")
    tuning, table = tuning_of(contest), folder / "leaderboard.csv"
    by_sweep = earlier_scores(replace(tuning, earlier=[str(contest)]))
    words = "experiment=cells/digits_a", "algorithm=fedavg", "seed=100"
    found = {frozenset(words): 0.4, frozenset([*words, "optimizer.lr=0.1"]): 0.6}
    assert by_sweep == pytest.approx(found)
    for path in (folder, table):
        assert earlier_scores(replace(tuning, earlier=[str(path)])) == by_sweep
    with pytest.raises(InputError, match=r"leaderboard\.csv: its scores are final, not mean_last5"):
        earlier_scores(replace(tuning, earlier=[str(table)], statistic="mean_last5"))
    pd.read_csv(table).drop(columns="overrides").to_csv(table)
    with pytest.raises(InputError, match=r"leaderboard\.csv: has no column overrides; an earlier"):
        earlier_scores(replace(tuning, earlier=[str(table)]))


def test_a_contest_that_went_on_from_its_table_is_joined_with_it(tmp_path: Path) -> None:
    """Its methods have the names of the table, also if all of its jobs share an option."""
    shared = "aggregator=uniform"
    for method in ("fedavg", "fednh"):
        write_contest(tmp_path / "old" / method, method, 100, shared=shared)
        write_contest(tmp_path / "new" / method, method, 100, shared=shared)
    old, new = ([*(tmp_path / name).iterdir()] for name in ("old", "new"))
    for sweep in new:
        shutil.rmtree(sweep / "0_100")  # in the table
    for sweep in old:
        for run in ("1_100", "0_0", "0_1", "1_0", "1_1"):
            shutil.rmtree(sweep / run)
    write(read_contest(old)[0], tmp_path / "to")
    joined, problems = read_contest([*new, tmp_path / "to" / "leaderboard.csv"])
    assert {*best(joined)["method"]} == {*joined["method"]} == {"fedavg", "fednh"}
    assert problems == []


def test_trials_with_another_statistic_are_not_joined(tmp_path: Path) -> None:
    write(read_contest([write_contest(tmp_path / "1", "fedavg", 100)])[0], tmp_path / "to")
    sweep = write_contest(tmp_path / "2", "fednh", 100)
    saved = (sweep / "multirun.yaml").read_text()
    (sweep / "multirun.yaml").write_text(
        saved.replace("own: {}", "own: {}\n      statistic: mean_last5")
    )
    with pytest.raises(InputError, match="scored by final and by mean_last5"):
        read_contest([sweep, tmp_path / "to" / "leaderboard.csv"])


def test_a_contest_that_stopped_among_its_trials_keeps_them_in_its_table(tmp_path: Path) -> None:
    contest = write_contest(tmp_path / "contest", "fedavg", 100)
    for seed in (0, 1):
        for final in contest.glob(f"*_{seed}"):
            shutil.rmtree(final)
    results, _ = read_contest([contest])
    write(results, folder := tmp_path / "to")
    assert len(earlier_scores(replace(tuning_of(contest), earlier=[str(folder)]))) == 2
    assert page(results).startswith("Cells: 0; methods: 0; runs: 0; ")
    assert "Further trials, of cells without final runs: 2." in page(results)


@pytest.mark.parametrize("name", ["absent.csv", ".", "empty.csv"])
def test_a_table_that_cannot_be_read_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InputError, match=r": is no table of a leaderboard: "):
        read_csv(tmp_path / name)


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    results, _ = read_results([write_sweep(tmp_path / "1", "algorithm=fedavg", "algorithm=fednh")])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"^--to .*file: cannot be written"):
        write(results, tmp_path / "file")


def test_a_contest_without_fedavg_has_a_page_without_gains(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "1", "algorithm=fedprox", "algorithm=fednh")
    written = write(read_results([sweep])[0], tmp_path / "to")
    assert [path.name for path in written] == ["leaderboard.csv", "leaderboard.md"]


def test_what_was_not_measured_is_absent_from_the_page(tmp_path: Path) -> None:
    """Two seeds of two methods, without personal accuracies and fairness."""
    methods = [f"algorithm={name} seed={seed}" for name in ("fedavg", "mine") for seed in (0, 1)]
    text = page(read_results([write_sweep(tmp_path, *methods)])[0])
    assert "| mine |  |  | 0.0 | 0.0 |" in text
    assert "Global accuracy: gains over fedavg" in text
    assert "Personal accuracy" not in text
    assert "nan" not in text


def test_methods_with_missing_runs_are_named_on_the_page(tmp_path: Path) -> None:
    """Of four seeds one method has two, and one only the first three."""
    runs = {"fedavg": range(4), "fednh": range(2), "fedprox": range(3)}
    methods = [f"algorithm={name} seed={seed}" for name, seeds in runs.items() for seed in seeds]
    text = page(read_results([write_sweep(tmp_path, *methods)])[0])
    assert "as runs are missing: fednh in digits_a (2), fedprox in digits_a (3)." in text
    assert "Two pairs of runs are not tested" in text
    assert "Of 1 comparisons 0 have an interval that excludes 0" in text
    whole = [each for each in methods if each[-1] in "012" and "fednh" not in each]
    text = page(read_results([write_sweep(tmp_path / "whole", *whole)])[0])
    assert "Fewer seeds" not in text


def test_the_page_of_one_seed_has_no_deviations_and_no_intervals(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "1", "algorithm=fedavg", "algorithm=fednh")
    text = page(read_results([sweep])[0])
    assert text.startswith("Cells: 1; methods: 2; runs: 2; hours of training: ")
    assert "One seed: no deviations and no intervals." in text
    assert "±" not in text
    (gains, *_) = (figure for name, _, figure in pictures(read_results([sweep])[0]))
    assert gains.get_suptitle() == (
        "global accuracy, gain over FedAvg;\nnothing is tested with fewer than three seeds"
    )


def test_a_method_with_two_objectives_in_a_cell_has_two_names(tmp_path: Path) -> None:
    aim = "objective=validation/personal_accuracy"
    methods = "algorithm=fedavg", f"algorithm=fedavg {aim}", f"algorithm=ditto {aim}"
    sweep = write_sweep(tmp_path, *methods)
    results, _ = read_results([sweep])
    assert list(results["method"]) == ["ditto", "fedavg", f"fedavg {aim}"]
