"""The trials of a contest and the choice among them."""

import math
from pathlib import Path

import pandas as pd
import pytest
import yaml
from support.run_files import write_run

from fedexp.cli.command import config_folder
from fedexp.errors import InputError
from fedexp.reporting.leaderboard.earlier import earlier_scores, new_trials, with_chosen
from fedexp.reporting.leaderboard.tuning import Tuning, choice, trial

NODE = {
    "seed": 100,
    "budgets": [4, 1],
    "common": {"optimizer.lr": "0.1,0.2"},
    "own": {"fedprox": {"regularizer.mu": [1]}},
}
TABLE = [
    [f"experiment={cell}", f"algorithm={name}", f"seed={seed}"]
    for cell in ("a", "b")
    for name in ("fedavg", "fedprox")
    for seed in (0, 1)
]


def test_the_first_trial_is_the_preset_then_common_then_own_settings() -> None:
    tuning = Tuning.read(NODE)
    common = [(), ("optimizer.lr=0.1",), ("optimizer.lr=0.2",)]
    assert tuning.settings("fedavg") == common
    # no more trials than the largest budget
    assert tuning.settings("fedprox") == [*common, ("regularizer.mu=1",)]
    assert tuning.keys("fedprox") == {"optimizer.lr", "regularizer.mu"}
    assert tuning.keys("fedavg") == {"optimizer.lr"}  # a job may fix what only others tune


def test_a_method_without_own_keys_tries_finer_values() -> None:
    tuning = Tuning.read({**NODE, "alone": {"optimizer.lr": "0.13,0.16,0.19"}})
    common = [(), ("optimizer.lr=0.1",), ("optimizer.lr=0.2",)]
    assert tuning.settings("fedavg") == [*common, ("optimizer.lr=0.13",)]
    assert tuning.settings("fedprox") == [*common, ("regularizer.mu=1",)]
    other = Tuning.read({**NODE, "alone": {"local.epochs": "1"}})
    assert other.keys("fedavg") == {"optimizer.lr", "local.epochs"}
    assert other.keys("fedprox") == {"optimizer.lr", "regularizer.mu"}
    job = ["algorithm=fedavg"]
    assert other.one_trial_each([job]) == [[*job, "optimizer.lr=0.2", "local.epochs=1"]]


def test_all_methods_of_the_leaderboard_have_equally_many_trials() -> None:
    table = Path(config_folder(), "experiment/leaderboard/digits.yaml")
    sweeper = yaml.safe_load(table.read_text())["hydra"]["sweeper"]
    tuning = Tuning.read(sweeper["tune"])
    names = {name for part in sweeper["parts"] for name in part["algorithm"]}
    trials = {name: tuning.settings(name) for name in names}
    # FedLA has three forms of the adaptation.
    assert {n: len(own) for n, own in trials.items() if len(own) != 16} == {"fedla": 12}
    assert all(len(set(own)) == len(own) and own[0] == () for own in trials.values())
    assert tuning.own.keys() <= names


def test_trials_have_a_seed_of_their_own() -> None:
    trials = Tuning.read(NODE).trials(TABLE)
    assert len(trials) == 2 * (3 + 4)
    assert trials[0] == ["experiment=a", "algorithm=fedavg", "seed=100"]
    assert trials[6] == ["experiment=a", "algorithm=fedprox", "regularizer.mu=1", "seed=100"]


def test_a_key_that_is_tuned_cannot_be_fixed() -> None:
    tuning = Tuning.read(NODE)
    jobs = [["algorithm=fedavg", "regularizer.mu=2"]]
    assert tuning.one_trial_each(jobs) == [[*jobs[0], "optimizer.lr=0.2"]]
    with pytest.raises(InputError, match=r"^optimizer\.lr: is tuned by this contest"):
        tuning.one_trial_each([["algorithm=fedavg", "optimizer.lr=0.4"]])


def test_the_trials_seed_is_no_seed_of_the_table() -> None:
    with pytest.raises(InputError, match=r"tune\.seed=100: is a seed of the table, too"):
        Tuning.read(NODE).one_trial_each([["algorithm=fedavg", "seed=100"]])


def test_each_budget_takes_the_best_of_its_first_trials() -> None:
    scores, changes = [0.5, 0.7, 0.7, 0.9], [0, 1, 1, 2]
    assert [choice(scores, changes, budget) for budget in (1, 2, 3, 4, 9)] == [0, 1, 1, 3, 3]
    assert choice([math.nan, 0.1], [0, 1], 2) == 1
    assert choice([math.nan, math.nan], [0, 1], 2) == 0


def test_of_equal_trials_the_one_nearest_to_the_preset_is_chosen() -> None:
    assert choice([0.5, 0.7, 0.7, 0.7], [0, 2, 1, 1], 4) == 2
    third = (0.1 + 0.2 + 0.3) / 3, (0.3 + 0.2 + 0.1) / 3  # the sums differ in their last bit
    assert third[0] != third[1]
    assert choice(third, [1, 1], 2) == choice(third[::-1], [1, 1], 2) == 0


def test_the_final_runs_have_the_chosen_settings_and_all_seeds() -> None:
    tuning = Tuning.read(NODE)
    scores = [0.5, 0.6, 0.7, 0.1, 0.2, 0.3, 0.9]  # cell a: lr 0.2; mu 1
    scores += [0.9, 0.1, 0.1, 0.5, math.nan, 0.4, 0.4]  # cell b: the presets
    finals = tuning.finals(TABLE, scores)
    rest = [[each for each in job if not each.startswith("seed")] for job in finals]
    assert rest[0:8:2] == [
        ["experiment=a", "algorithm=fedavg"],
        ["experiment=a", "algorithm=fedavg", "optimizer.lr=0.2"],
        ["experiment=a", "algorithm=fedprox"],
        ["experiment=a", "algorithm=fedprox", "regularizer.mu=1"],
    ]
    assert rest[8::2] == [
        ["experiment=b", "algorithm=fedavg"],
        ["experiment=b", "algorithm=fedprox"],
    ]
    assert [job[2] for job in finals[:2]] == ["seed=0", "seed=1"]


def test_a_setting_is_chosen_by_the_mean_over_the_trials_seeds() -> None:
    tuning = Tuning.read({**NODE, "seed": "100,101", "budgets": [3], "own": {}})
    table = [["algorithm=fedavg", "seed=0"]]
    trials = tuning.trials(table)
    assert trials[:3] == [
        ["algorithm=fedavg", "seed=100"],
        ["algorithm=fedavg", "seed=101"],
        ["algorithm=fedavg", "optimizer.lr=0.1", "seed=100"],
    ]
    # Means 0.4, NaN (a failed trial) and 0.5; the best single trial is that of another setting.
    scores = [0.1, 0.7, 0.9, math.nan, 0.5, 0.5]
    assert tuning.finals(table, scores) == [[*table[0], "optimizer.lr=0.2"]]
    with pytest.raises(InputError, match=r"tune\.seed=101: is a seed of the table, too"):
        tuning.one_trial_each([["algorithm=fedavg", "seed=101"]])


def test_trials_of_earlier_sweeps_are_known(tmp_path: Path) -> None:
    words = ["algorithm=fedavg", "seed=100", "engine=serial", "optimizer.lr=0.1"]
    history = [{"validation/accuracy": each} for each in (0.9, 0.1, 0.2, 0.3, 0.4, 0.5)]
    write_run(tmp_path / "run", words, history, seed=100, objective="validation/accuracy")
    node = {**NODE, "statistic": "mean_last5"}
    known = earlier_scores(Tuning.read({**node, "earlier": [tmp_path]}))
    (score,) = known.values()
    assert known.keys() == {trial(["seed=100", "optimizer.lr=0.1", "algorithm=fedavg"])}
    assert score == pytest.approx(0.3)
    assert earlier_scores(Tuning.read(node)) == {}
    with pytest.raises(InputError, match=r"^hydra.sweeper.tune.earlier: .*none: does not exist"):
        earlier_scores(Tuning.read({**node, "earlier": [tmp_path / "none"]}))
    with pytest.raises(InputError, match=r"tpyo: does not exist"):
        earlier_scores(Tuning.read({**node, "earlier": [tmp_path, tmp_path / "tpyo"]}))
    with pytest.raises(InputError, match=r"tune\.statistic=best: is none of final, mean_last5"):
        Tuning.read({**node, "statistic": "best"})


def test_a_sweep_that_goes_on_keeps_its_trials_when_earlier_sweeps_get_more(tmp_path: Path) -> None:
    """Jobs are numbered by the trials, so another list would meet the folders of other jobs."""
    trials = Tuning.read(NODE).trials(TABLE)
    known = {trial(trials[0])}
    first = new_trials(trials, known, tmp_path)
    assert first == trials[1:]
    assert new_trials(trials, {*known, trial(trials[1])}, tmp_path) == first
    message = (
        f"^hydra.sweeper.tune: {tmp_path} was begun without the trial seed=100 algorithm=fedavg"
    )
    with pytest.raises(InputError, match=message):
        new_trials(trials, set(), tmp_path)


def test_the_objective_is_part_of_a_trial_and_of_a_choice(tmp_path: Path) -> None:
    words, aim = (
        ["algorithm=fedavg", "aggregator=uniform"],
        "objective=validation/personal_accuracy",
    )
    assert trial([*words, "seed=100"]) != trial([*words, aim, "seed=100"])
    columns = ["cell", "method", "setting", "seed", "trial", "score"]
    rows = [
        ("a", f"fedavg aggregator=uniform{more}", setting, 0, 0, None)
        for more, setting in (("", "optimizer.lr=0.1"), (f" {aim}", "optimizer.lr=0.2"))
    ]
    path = tmp_path / "leaderboard.csv"
    pd.DataFrame(rows, columns=columns).assign(budgets="").to_csv(path, index=False)
    jobs = [["experiment=a", *words, "seed=5"], ["experiment=a", *words, aim, "seed=5"]]
    jobs.append(["experiment=a", "algorithm=fedprox", "seed=5"])
    found, _ = with_chosen(jobs, Tuning.read({**NODE, "chosen": str(path)}))
    assert [job[-1] for job in found] == ["optimizer.lr=0.1", "optimizer.lr=0.2"]


def test_an_option_that_all_jobs_share_is_still_that_of_their_row(tmp_path: Path) -> None:
    names = ["fednh", "fedgela", "fednh sampler=hics", "fedgela sampler=hics", "fednh loss=moon"]
    rows = [("a", name, f"optimizer.lr={lr}", 0, 0, None) for lr, name in enumerate(names)]
    path = tmp_path / "leaderboard.csv"
    columns = ["cell", "method", "setting", "seed", "trial", "score"]
    pd.DataFrame(rows, columns=columns).assign(budgets="").to_csv(path, index=False)
    tuning = Tuning.read({**NODE, "chosen": str(path)})

    def jobs(*shared: str) -> list[list[str]]:
        return [["experiment=a", f"algorithm={each}", *shared] for each in ("fednh", "fedgela")]

    def chosen(*shared: str) -> list[str]:
        return [job[-1] for job in with_chosen(jobs(*shared), tuning)[0]]

    assert chosen("rounds=30") == ["optimizer.lr=0", "optimizer.lr=1"]
    assert chosen("sampler=hics") == ["optimizer.lr=2", "optimizer.lr=3"]
    found, absent = with_chosen(jobs("sampler=hics", "loss=moon"), tuning)
    assert [job[-1] for job in found] == ["optimizer.lr=3"]
    assert absent == ["fednh loss=moon sampler=hics"]  # the contest has each of the two alone


def test_what_is_missing_is_one_line() -> None:
    with pytest.raises(InputError, match=r"^hydra.sweeper.tune.budgets: is missing"):
        Tuning.read({"seed": 1, "common": {}})
    for entry, line in (
        ({"budget": [4]}, r"tune\.budget: is no key of tune; it has alone, budgets"),
        ({"budgets": 4}, r"tune\.budgets: should be whole numbers, such as \[1,4\]"),
        ({"seed": "range(100,103)"}, r'tune\.seed: should be whole numbers, such as "900,901"'),
    ):
        with pytest.raises(InputError, match=line):
            Tuning.read({**NODE, **entry})
    with pytest.raises(InputError, match="needs an algorithm"):
        Tuning.read(NODE).trials([["experiment=a", "seed=0"]])


def with_table(folder: Path) -> Tuning:
    """The contest with the choices of a table: two cells, fedavg with and without fine-tuning."""
    tuned = "fedavg personalization=finetune"
    rows = [
        *[("a", "fedavg", "", 100, 1, 0.5), ("a", "fedavg", "optimizer.lr=0.1", 100, 2, 0.7)],
        *[("a", "fedavg", "", 0, 0, None), ("a", "fedavg", "optimizer.lr=0.1", 0, 0, None)],
        *[
            ("a", tuned, "optimizer.lr=0.2", 100, 3, 0.5),
            ("a", tuned, "optimizer.lr=0.2", 0, 0, None),
        ],
        *[("b", "fedavg", "", 100, 1, 0.9), ("b", "fedavg", "", 0, 0, None)],
        *[("b", "fedavg", "optimizer.lr=0.1", 100, 2, 0.7)],
    ]
    columns = ["cell", "method", "setting", "seed", "trial", "score"]
    path = folder / "leaderboard.csv"
    pd.DataFrame(rows, columns=columns).assign(budgets="1 4").to_csv(path, index=False)
    return Tuning.read({**NODE, "chosen": str(path)})


def test_the_choices_of_a_table_need_no_trials(tmp_path: Path) -> None:
    tuning = with_table(tmp_path)
    assert (tuning.seeds, tuning.budgets) == ([], [])
    cells = [f"experiment=leaderboard/{each}" for each in ("a", "b")]
    options = ["engine=serial", "objective=loss", "rounds=30"]  # all jobs share the rounds
    fine = "personalization=finetune"
    jobs = [[cells[0], "algorithm=fedavg", *options, f"seed={seed}"] for seed in (100, 5)]
    jobs += [[cells[0], "algorithm=fedavg", fine, "rounds=30", "seed=5"]]
    jobs += [[cells[1], "algorithm=fedavg", "rounds=30", "seed=5"]]
    jobs += [[cells[1], "algorithm=fedavg", fine, "rounds=30", "seed=5"]]
    jobs += [[cells[1], "algorithm=fedprox", "rounds=30", "seed=5"]]
    found, absent = with_chosen(jobs, tuning)
    assert found == [
        [*jobs[0], "optimizer.lr=0.1"],
        [*jobs[1], "optimizer.lr=0.1"],
        [*jobs[2], "optimizer.lr=0.2"],
        jobs[3],
    ]
    assert absent == ["fedavg personalization=finetune", "fedprox"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("optimizer.lr=1", r"^optimizer\.lr: is tuned by this contest"),
        ("local.epochs=1", r"tune\.chosen=.*leaderboard\.csv: has no row of fedavg local.epochs=1"),
    ],
)
def test_jobs_that_a_table_cannot_choose_for(word: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        with_chosen([["experiment=a", "algorithm=fedavg", word]], with_table(tmp_path))


def test_the_table_of_choices_must_be_readable(tmp_path: Path) -> None:
    tuning = Tuning.read({**NODE, "chosen": str(tmp_path / "absent.csv")})
    with pytest.raises(InputError, match=r"tune\.chosen: .*absent\.csv: does not exist$"):
        with_chosen(TABLE, tuning)
