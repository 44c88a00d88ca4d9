from pathlib import Path

import pytest

from fedexp.tracking.table_files import TableFiles
from fedexp.tracking.tracker import Record, RunInfo

TABLES = {
    1: {"clients": {"client": [0, 3], "loss": [0.1, None]}, "edges": {"to": ["a b"]}},
    3: {"clients": {"client": [3], "loss": [1 / 3]}},
}


def log(tracker: TableFiles, *rounds: int) -> None:
    for round in rounds:
        tracker.log(Record(round, {"train/loss": 1.0}, tables=TABLES.get(round, {})))


def test_a_table_grows_by_the_rows_of_each_round(tmp_path: Path) -> None:
    log(TableFiles(RunInfo(tmp_path)), 1, 2, 3)
    clients = (tmp_path / "clients.csv").read_text()
    assert clients == f"round,client,loss\n1,0,0.1\n1,3,\n3,3,{1 / 3}\n"
    assert (tmp_path / "edges.csv").read_text() == "round,to\n1,a b\n"
    assert {path.name for path in tmp_path.iterdir()} == {"clients.csv", "edges.csv"}


def test_a_name_with_a_slash_is_a_file_of_the_runs_folder(tmp_path: Path) -> None:
    tables, logs = {"drift/steps": {"client": [2]}}, {"turns": {"client": [4]}}
    TableFiles(RunInfo(tmp_path)).log(Record(1, tables=tables, logs=logs))
    TableFiles(RunInfo(tmp_path, resumed=True, past=[Record(1)])).log(Record(2, tables=tables))
    assert (tmp_path / "drift_steps.csv").read_text() == "round,client\n1,2\n2,2\n"
    assert (tmp_path / "turns.csv").read_text() == "round,client\n1,4\n"


def test_a_resumed_run_drops_the_rows_of_later_rounds_and_keeps_every_digit(tmp_path: Path) -> None:
    log(TableFiles(RunInfo(tmp_path)), 1, 3)
    whole = (tmp_path / "clients.csv").read_bytes()
    partition = b"client,cat,dog\n0,1,2\n5,3,4\n"
    (tmp_path / "partition.csv").write_bytes(partition)
    past = [Record(1), Record(2)]
    tracker = TableFiles(RunInfo(tmp_path, resumed=True, past=past))
    assert (tmp_path / "clients.csv").read_text() == "round,client,loss\n1,0,0.1\n1,3,\n"
    log(tracker, 3)
    assert (tmp_path / "clients.csv").read_bytes() == whole
    tracker = TableFiles(RunInfo(tmp_path, resumed=True, past=[*past, Record(3)]))
    assert (tmp_path / "clients.csv").read_bytes() == whole
    assert (tmp_path / "partition.csv").read_bytes() == partition


def test_a_run_that_starts_afresh_in_its_folder_has_no_old_rows(tmp_path: Path) -> None:
    log(TableFiles(RunInfo(tmp_path)), 1, 3)
    log(TableFiles(RunInfo(tmp_path, resumed=True)), 1)
    assert (tmp_path / "clients.csv").read_text() == "round,client,loss\n1,0,0.1\n1,3,\n"


def test_a_run_that_starts_afresh_measures_round_0_once(tmp_path: Path) -> None:
    start = Record(0, tables={"start": {"client": [5]}})
    for resumed in (False, True):
        TableFiles(RunInfo(tmp_path, resumed=resumed)).log(start)
    assert (tmp_path / "start.csv").read_text() == "round,client\n0,5\n"
    TableFiles(RunInfo(tmp_path, resumed=True, past=[Record(1)]))
    assert (tmp_path / "start.csv").read_text() == "round,client\n0,5\n"


def test_a_file_that_a_kill_left_empty_gets_its_heading(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").touch()
    log(TableFiles(RunInfo(tmp_path, resumed=True)), 1)
    assert (tmp_path / "edges.csv").read_text() == "round,to\n1,a b\n"


def test_a_kill_while_rows_are_dropped_loses_no_earlier_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(TableFiles(RunInfo(tmp_path)), 1, 3)
    whole = (tmp_path / "clients.csv").read_bytes()

    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    monkeypatch.setattr("os.replace", kill)
    with pytest.raises(Killed):
        TableFiles(RunInfo(tmp_path, resumed=True, past=[Record(1)]))
    assert (tmp_path / "clients.csv").read_bytes() == whole
