"""A tiny contest from the command to its page."""

from pathlib import Path

import pandas as pd
import pytest
from support.command_line import fedexp

from fedexp.cli.leaderboard import main
from fedexp.errors import InputError
from fedexp.reporting.leaderboard.files import read_contest, read_csv, write
from fedexp.reporting.leaderboard.page import page

TINY = [
    *("-m", "experiment=leaderboard/digits", "hydra.sweeper.cells=[digits_dir03]"),
    *("algorithm=fedavg,fedprox,fedper", "seed=0,1", "rounds=2", "data.subset=300"),
    *("hydra.sweeper.tune.budgets=[1,2]", "hydra.sweeper.tune.seed=100"),
    "hydra.sweep.dir=contest",
]


@pytest.fixture(scope="module")
def contest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("contest")
    done = fedexp(*TINY, folder=folder)
    assert done.returncode == 0, done.stderr
    assert "fedexp: first 6 trials of settings" in done.stderr
    assert "fedexp-leaderboard contest --to DIR" in done.stdout
    return folder / "contest"


@pytest.mark.slow
def test_the_page_is_made_of_the_runs(contest: Path, tmp_path: Path) -> None:
    main([str(contest), "--to", str(tmp_path)])
    results = read_csv(tmp_path / "leaderboard.csv")
    trials = results[results["trial"] > 0]
    assert len(trials) == 3 * 2
    assert set(trials["seed"]) == {100}
    assert set(results.loc[results["trial"] == 0, "seed"]) == {0, 1}
    assert trials["score"].between(0, 1).all()
    one = results[(results["method"] == "fedper") & (results["trial"] == 0)]
    assert set(one["objective"]) == {"validation/personal_accuracy"}
    assert one["global accuracy"].isna().all()  # it has no global model
    assert one["personal accuracy"].between(0, 1).all()
    text = (tmp_path / "leaderboard.md").read_text()
    assert page(results) in text
    assert "Cells: 1; methods: 3; trials: 6;" in text
    assert "| method | trials: 1 | trials: 2 |" in text  # the budgets of this contest
    assert {"gains_global_accuracy.png", "ranks_personal_accuracy.png"} <= {
        path.name for path in tmp_path.iterdir()
    }


@pytest.mark.slow
def test_a_sweep_is_joined_with_an_earlier_table(contest: Path, tmp_path: Path) -> None:
    main([str(contest), "--to", str(tmp_path)])
    table = tmp_path / "leaderboard.csv"
    before = table.read_bytes()
    rows = read_csv(table)
    new = rows[rows["method"] == "fedavg"].assign(cell="digits_elsewhere")
    write(new, tmp_path / "elsewhere")
    elsewhere = str(tmp_path / "elsewhere" / "leaderboard.csv")
    main([str(table), str(contest), elsewhere, "--to", str(tmp_path)])
    joined = read_csv(table)
    assert set(joined["cell"]) == {"digits_dir03", "digits_elsewhere"}
    assert len(joined) == len(rows) + len(new)  # the table's own rows are those of the sweep
    main([str(tmp_path / "leaderboard.csv"), "--to", str(tmp_path / "again")])
    assert (tmp_path / "again" / "leaderboard.csv").read_bytes() == table.read_bytes() != before


@pytest.mark.slow
def test_a_contest_goes_on_where_it_stopped(contest: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in contest.glob("*/summary.json")}
    done = fedexp(*TINY[:-1], "resume=contest", folder=contest.parent)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in contest.glob("*/summary.json")} == before


def test_a_folder_without_a_contest_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^fedexp-leaderboard: .*is not the sweep of a contest"):
        main([str(tmp_path), "--to", str(tmp_path / "out")])


@pytest.mark.parametrize("text", ["cell,method\na,b\n", "", '"a\n', "\x00"])
def test_another_file_is_one_line(text: str, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text(text)
    with pytest.raises(SystemExit, match=r"^fedexp-leaderboard: .*other\.csv: is no table of a"):
        main([str(other), "--to", str(tmp_path / "out")])


def test_entries_need_a_sweep_to_be_compared_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "leaderboard.csv"
    table.touch()
    with pytest.raises(SystemExit):
        main([str(table), "--entries", str(tmp_path), "--to", str(tmp_path / "out")])
    assert "--entries needs the folder of a sweep" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(table), "--checked-by", "me", "--run-own-code", "--to", str(tmp_path / "out")])
    assert "--checked-by and --run-own-code: only with --entries\n" in capsys.readouterr().err


@pytest.mark.slow
def test_all_cells_and_methods_of_digits_can_be_composed(tmp_path: Path) -> None:
    done = fedexp(*TINY[:2], "limits.minutes=0.0001", folder=tmp_path)
    assert "Traceback" not in done.stderr
    assert "the sweep stopped" in done.stderr, done.stderr


def test_a_method_without_final_runs_is_absent_from_the_page() -> None:
    columns = ["cell", "method", "setting", "seed", "trial", "score"]
    measured = ["global accuracy", "personal accuracy", "worst tenth", "gini"]
    rows = [["digits_a", "fedavg", "", 100, 1, 0.5], ["digits_a", "fedavg", "", 0, 0, None]]
    rows += [["digits_a", "half", "", 100, 1, 0.5]]
    frame = pd.DataFrame(rows, columns=columns).assign(**dict.fromkeys(measured, 0.5))
    text = page(frame.assign(megabytes=1.0, seconds=1.0, budgets="1 4", objective="", control=""))
    assert "| fedavg |" in text
    assert "| half |" not in text


def test_of_equal_runs_the_first_table_counts(tmp_path: Path) -> None:
    rows = [["a", "fedavg", "", seed, 0, None] for seed in (1, 0)]
    columns = ["cell", "method", "setting", "seed", "trial", "score"]
    one = pd.DataFrame(rows, columns=columns).assign(seconds=1.0)
    paths = [tmp_path / "one.csv", tmp_path / "other.csv"]
    one.to_csv(paths[0], index=False)
    one.assign(seconds=2.0, cell=["a", "b"]).to_csv(paths[1], index=False)
    found, problems = read_contest(paths)
    assert problems == []
    assert found[["cell", "seed", "seconds"]].to_numpy().tolist() == [
        ["a", 0, 1.0],
        ["a", 1, 1.0],
        ["b", 0, 2.0],
    ]
    one.drop(columns="trial").to_csv(paths[0], index=False)
    with pytest.raises(InputError, match="it has no column trial"):
        read_contest(paths)


def test_a_contest_of_one_seed_without_trials_claims_nothing(tmp_path: Path) -> None:
    columns = ["cell", "method", "setting", "seed", "trial", "score", "budgets"]
    rows = [["cifar10_dir03", name, "", 0, 0, None, ""] for name in ("fedavg", "fednh")]
    measured = ["global accuracy", "personal accuracy", "worst tenth", "gini"]
    frame = pd.DataFrame(rows, columns=columns).assign(**dict.fromkeys(measured, 0.5))
    written = write(frame.assign(megabytes=1.0, seconds=1.0, objective="", control=""), tmp_path)
    text = (tmp_path / "leaderboard.md").read_text()
    assert "| fednh | 1.5 | 0.500 |" in text
    assert not [word for word in ("nan", "trials: 1 |", "ahead", "Chosen") if word in text]
    assert not [path for path in written if path.name.startswith("ranks")]
