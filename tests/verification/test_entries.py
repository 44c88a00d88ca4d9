"""A leaderboard takes entries from outside: artefacts that verify and had the same task."""

import secrets
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import fedexp
from support.tables import tabular_options, write_table
from support.verified import edit_json, edit_rounds

from fedexp.cli.leaderboard import main
from fedexp.reporting.leaderboard.entries import Entry, _task, with_entries
from fedexp.reporting.leaderboard.files import read_csv
from fedexp.reporting.leaderboard.results import read_results
from fedexp.verification.archive import unpack, write_archive
from fedexp.verification.pack import pack

TINY = [
    *("-m", "experiment=leaderboard/digits", "hydra.sweeper.cells=[digits_dir03]", "seed=0"),
    *("data.subset=200", "local.epochs=1", "hydra.sweeper.tune.budgets=[1]"),
    "hydra.sweeper.tune.seed=100",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A contest with FedAvg, and the sweep and the artefact of an entrant with FedAvgM.

    Their data are in ``cancer.csv``.
    """
    folder = tmp_path_factory.mktemp("leaderboard")
    data = tabular_options(write_table(folder))
    for name, method in (("contest", "fedavg"), ("entrant", "fedavgm")):
        words = [*data, f"algorithm={method}", "rounds=2", f"hydra.sweep.dir={name}"]
        done = fedexp(*TINY, *words, folder=folder)
        assert done.returncode == 0, done.stderr
    (folder / "entries").mkdir()
    pack(folder / "entrant", folder / "entries" / "fair.zip")
    return folder


@pytest.mark.slow
def test_an_entry_that_verifies_gets_its_row_and_others_a_line(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = Path(shutil.copytree(place / "entries", tmp_path / "entries"))
    edited = tmp_path / "edited"
    unpack(entries / "fair.zip", edited)
    edit_rounds(edited / "runs" / "0", lambda rounds: rounds[1].update({"global/accuracy": 1.0}))
    files = {p.relative_to(edited).as_posix(): p for p in edited.rglob("*") if p.is_file()}
    write_archive(entries / "edited.zip", {name: p.read_bytes() for name, p in files.items()})
    (entries / "broken.zip").write_bytes(b"PK")
    main(
        [
            *(str(place / "contest"), "--to", str(tmp_path / "out"), "--entries", str(entries)),
            *("--checked-by", "the editors", "--rounds", "1", "--jobs", "1"),
            *("--place", f"data.path={place / 'cancer.csv'}"),
        ]
    )
    results = read_csv(tmp_path / "out" / "leaderboard.csv")
    assert set(results["method"]) == {"fedavg", "fedavgm [1]"}
    page = (tmp_path / "out" / "leaderboard.md").read_text()
    (row,) = [line for line in page.splitlines() if "fair.zip" in line]
    assert row.startswith(r"| \[1\] | fair.zip | fedavgm | ")
    assert "| files, report, 1 of 2 runs: the same bits through round 1 of 2 | the editors |" in row
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith(
        "broken.zip: is a damaged or foreign zip file (File is not a zip file)"
    )
    assert lines[1].startswith("edited.zip: left out: ")
    assert "runs/0/metrics.jsonl: has changed" in lines[1]


@pytest.mark.slow
def test_an_entry_whose_data_are_at_no_known_place_is_left_out(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(place / "contest"), "--to", str(tmp_path), "--entries", str(place / "entries")]
    main([*words, "--rounds", "1", "--jobs", "1"])
    assert set(read_csv(tmp_path / "leaderboard.csv")["method"]) == {"fedavg"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fair.zip: left out: runs/")
    assert "cannot be trained again: data.path=/elsewhere/cancer.csv" in line


@pytest.mark.slow
def test_an_entry_with_another_task_is_left_out(place: Path, tmp_path: Path) -> None:
    results, _ = read_results([place / "contest"])

    def line(change: Callable[[Path], object]) -> str:
        runs = Path(shutil.copytree(place / "entrant", tmp_path / secrets.token_hex(4)))
        change(runs)
        entry = Entry("e.zip", "0", runs, "all", "me")
        unchanged, table, problems = with_entries(results, [place / "contest"], [entry])
        assert table is None
        assert len(unchanged) == len(results)
        return problems[0]

    def rounds(runs: Path) -> None:
        edit_json(runs / "1" / "run.json", lambda found: found["config"].update(rounds=9))

    def epochs(runs: Path) -> None:
        edit_json(runs / "1" / "run.json", lambda found: found["config"]["local"].update(epochs=9))

    def model(runs: Path) -> None:
        edit_json(runs / "1" / "run.json", lambda found: found["config"]["model"].update(hidden=9))

    def budgets(runs: Path) -> None:
        path = runs / "multirun.yaml"
        path.write_text(path.read_text().replace("      - 1\n", "      - 16\n"))

    def data(runs: Path) -> None:
        edit_json(
            runs / "1" / "origin.json", lambda found: found["starts"][0]["data"].update(train=0)
        )

    left_out = "e.zip: left out: "
    assert line(rounds) == f"{left_out}in cell digits_dir03 it has rounds=9; the contest has 2"
    assert line(epochs).startswith(f"{left_out}in cell digits_dir03 it has local.epochs=9; the con")
    assert line(model).startswith(f"{left_out}in cell digits_dir03 it has model.hidden=9; the con")
    assert line(data) == (
        f"{left_out}in cell digits_dir03 it has other data, or another partition of them"
    )
    assert line(budgets).startswith(f"{left_out}its trials have budgets [16], seeds [100] and")


def test_a_task_has_the_name_of_a_file_and_not_its_place() -> None:
    tasks = [_task({"model": {"start_from": f"{folder}/a.pt"}}) for folder in ("/me", "/elsewhere")]
    assert tasks[0] == tasks[1] != _task({"model": {"start_from": "/elsewhere/b.pt"}})


def test_a_folder_without_entries_is_one_line(place: Path, tmp_path: Path) -> None:
    words = [str(place / "contest"), "--to", str(tmp_path / "out"), "--entries", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"^fedexp-leaderboard: --entries .*: has no zip file"):
        main(words)
