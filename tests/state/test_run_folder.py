"""A run's folder: which runs may start or resume there."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.federations import compose

from fedexp.cli.resume import check_run, choose_sweep_folder
from fedexp.config.schema import Config
from fedexp.errors import InputError
from fedexp.state.folder_lock import is_busy
from fedexp.state.run_folder import (
    check,
    claim,
    find_unfinished,
    finished_summary,
    objective,
    parse_identity,
    read,
    rounds_finished,
    write_identity,
)


def begin(folder: Path, config: Config, rounds: int = 0) -> None:
    """A run that was started and, with ``rounds``, finished with a checkpoint."""
    with claim(folder, config) as run:
        write_identity(folder, run)
    if rounds:
        (folder / "metrics.jsonl").write_text("{}\n" * rounds)
        (folder / "summary.json").write_text(json.dumps({"rounds": rounds, "metrics": {}}))
        (folder / "checkpoints" / f"round_{rounds:04d}").mkdir(parents=True)


def test_a_resumed_run_may_have_another_length(tmp_path: Path) -> None:
    begin(tmp_path, compose("rounds=5"))
    long = (tmp_path / "run.json").read_bytes()
    with claim(tmp_path, compose("rounds=12", "resume=auto")) as run:
        assert run.config["rounds"] == 12
        assert run.config["resume"] is None
        assert (tmp_path / "run.json").read_bytes() == long  # it may yet be refused
        write_identity(tmp_path, run)
    begin(tmp_path, compose("rounds=7", "resume=auto"))
    found = read(tmp_path)  # a shorter text takes the place of a longer one
    assert found is not None
    assert found.config["rounds"] == 7
    assert found.wandb_id == json.loads(long)["wandb_id"]


def test_a_claimed_folder_is_locked_and_later_known(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claim(folder, compose()) as first:
        assert not first.known
        assert is_busy(folder)
        write_identity(folder, first)
    assert not is_busy(folder)
    with claim(folder, compose("resume=auto")) as second:
        assert second.known
        assert second.wandb_id == first.wandb_id
        assert second.config == compose().model_dump(mode="json")


def test_two_processes_cannot_work_in_one_folder(tmp_path: Path) -> None:
    with (
        claim(tmp_path, compose()),
        pytest.raises(InputError, match=f"process {os.getpid()} on .* is using this folder$"),
        claim(tmp_path, compose("resume=auto")),
    ):
        pass


def test_directions_of_metrics_are_kept_and_older_files_have_none(tmp_path: Path) -> None:
    better, others = {"global/accuracy": "higher"}, {"cost/*": "lower"}
    with claim(tmp_path, compose(), better, others) as run:
        write_identity(tmp_path, run)
    found = read(tmp_path)
    assert found is not None
    assert (found.headlines, found.directions) == (better, others)
    content = json.loads((tmp_path / "run.json").read_text())
    del content["directions"]
    older = parse_identity(json.dumps(content).encode())
    assert older is not None
    assert (older.headlines, older.directions) == (better, {})


def test_a_run_file_that_is_incomplete_counts_as_absent(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"config": {"see')
    assert read(tmp_path) is None
    with claim(tmp_path, compose()) as run:
        assert not run.known
        write_identity(tmp_path, run)
    found = read(tmp_path)
    assert found is not None
    assert found.wandb_id == run.wandb_id


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "already holds a run; name another folder, or resume the run with resume="),
        (["resume=auto", "optimizer.lr=0.5"], r"has changed; the run had optimizer\.lr=0\.02$"),
        (["resume=auto", "rounds=2"], r"rounds=2: .* has 3 rounds already"),
    ],
)
def test_runs_that_cannot_be_resumed(overrides: list[str], message: str, tmp_path: Path) -> None:
    begin(tmp_path, compose("rounds=3"), rounds=3)
    with pytest.raises(InputError, match=message):
        check(tmp_path, compose(*overrides))


def test_a_path_without_a_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no run"):
        check_run(tmp_path, compose(f"resume={tmp_path}"))
    (tmp_path / "metrics.jsonl").write_text("{}")
    with pytest.raises(InputError, match=r"has no run\.json"):
        check(tmp_path, compose(f"resume={tmp_path}"))


def test_the_newest_run_with_rounds_left(tmp_path: Path) -> None:
    config = compose("rounds=5")
    assert find_unfinished(tmp_path, config) is None
    begin(tmp_path / "1" / "a", config)
    begin(tmp_path / "1" / "b", compose("rounds=3"), rounds=3)
    begin(tmp_path / "2" / "a", config, rounds=5)
    begin(tmp_path / "2" / "b", compose("rounds=5", "seed=1"))
    (tmp_path / "3" / "a").mkdir(parents=True)
    (tmp_path / "3" / "a" / "run.json").write_text("")
    assert find_unfinished(tmp_path, config) == tmp_path / "1" / "b"  # it is extended
    with claim(tmp_path / "1" / "b", compose("rounds=5", "resume=auto")):
        assert find_unfinished(tmp_path, config) == tmp_path / "1" / "a"
    (tmp_path / "1" / "b" / "checkpoints" / "round_0003").rmdir()
    assert find_unfinished(tmp_path, config) == tmp_path / "1" / "a"


def test_a_killed_run_with_more_rounds_is_left_alone(tmp_path: Path) -> None:
    killed = tmp_path / "1" / "a"
    begin(killed, compose("rounds=9"))
    (killed / "checkpoints" / "round_0005").mkdir(parents=True)
    for rounds, found in {4: None, 5: killed, 6: killed}.items():  # 5 lacks its summary alone
        assert find_unfinished(tmp_path, compose(f"rounds={rounds}")) == found
    with pytest.raises(InputError, match=r"rounds=4: .* has 5 rounds already"):
        check(killed, compose("resume=auto", "rounds=4"))


STRAY: dict[str, Callable[[Path], object]] = {
    "a list": lambda path: path.write_text("[]"),
    "a number": lambda path: path.write_text("1"),
    "another program's": lambda path: path.write_text('{"name": "x"}'),
    "an odd config": lambda path: path.write_text('{"config": [], "wandb_id": "1"}'),
    "an odd id": lambda path: path.write_text('{"config": {}, "wandb_id": 1}'),
    "odd headlines": lambda path: path.write_text(
        '{"config": {}, "wandb_id": "1", "headlines": 3}'
    ),
    "half": lambda path: path.write_text('{"config": {"see'),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "zeros": lambda path: path.write_bytes(bytes(500)),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "too large": lambda path: (path.touch(), os.truncate(path, 2**40)),
}
FOREIGN = ("a list", "a number", "another program's", "an odd config", "an odd id", "a folder")
FOREIGN += ("a pipe",)


@pytest.mark.parametrize("name", STRAY)
def test_a_stray_run_file_stops_no_search(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = compose("rounds=5")
    begin(tmp_path / "1" / "a", config)
    (tmp_path / "2" / "x").mkdir(parents=True)
    STRAY[name](tmp_path / "2" / "x" / "run.json")
    assert find_unfinished(tmp_path, config) == tmp_path / "1" / "a"
    assert caplog.text.count("skipped") == 1
    assert str(tmp_path / "2" / "x" / "run.json") in caplog.text


def test_a_run_file_that_cannot_be_read_stops_no_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config, read_bytes = compose("rounds=5"), Path.read_bytes
    begin(tmp_path / "1" / "a", config)
    begin(tmp_path / "2" / "b", config)

    def refuse(path: Path) -> bytes:
        if path.parent.name == "b":
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert find_unfinished(tmp_path, config) == tmp_path / "1" / "a"
    assert "Permission denied" in caplog.text
    with pytest.raises(InputError, match=r"run\.json: cannot be read \(Permission denied\)$"):
        check(tmp_path / "2" / "b", compose(f"resume={tmp_path}"))


@pytest.mark.parametrize("name", FOREIGN)
def test_the_file_of_another_program_is_not_overwritten(name: str, tmp_path: Path) -> None:
    STRAY[name](tmp_path / "run.json")
    for override in ("resume=null", f"resume={tmp_path}"):
        with (
            pytest.raises(InputError, match=r"run\.json: is no file of fedexp; name another"),
            claim(tmp_path, compose(override)),
        ):
            pass


def test_a_checkpoints_copy_replaces_a_damaged_run_file(tmp_path: Path) -> None:
    begin(tmp_path, compose("rounds=3"), rounds=3)
    before = read(tmp_path)
    shutil.copy(tmp_path / "run.json", tmp_path / "checkpoints" / "round_0003" / "identity.json")
    for content in (b"", b'{"config"', bytes(99)):
        (tmp_path / "run.json").write_bytes(content)
        assert read(tmp_path) == before
    (tmp_path / "run.json").unlink()
    assert read(tmp_path) == before
    with claim(tmp_path, compose("rounds=3", f"resume={tmp_path}")) as run:
        assert before is not None
        assert run.wandb_id == before.wandb_id
    with pytest.raises(InputError, match="already holds a run"):
        check(tmp_path, compose())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "null",
        "7",
        '{"rounds": 3',
        '{"rounds": "3"}',
        '{"rounds": 2, "metrics": {}}',
    ],
)
def test_an_unreadable_summary_means_not_finished(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begin(tmp_path / "1" / "a", compose("rounds=3"), rounds=3)
    summary = tmp_path / "1" / "a" / "summary.json"
    assert rounds_finished(summary.parent) == 3
    summary.write_text(content)
    assert finished_summary(summary.parent) is None
    assert f"{summary} is damaged" in caplog.text
    assert find_unfinished(tmp_path, compose("rounds=3")) == summary.parent
    summary.write_bytes(b"\xff\0")
    assert finished_summary(summary.parent) is None


def test_a_summary_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, compose("rounds=3"), rounds=3)

    def refuse(*_: object, **__: object) -> bytes:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(InputError, match=r"summary\.json cannot be read \(Stale file handle\)$"):
        rounds_finished(tmp_path)


def test_a_full_disk_leaves_the_old_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, compose("rounds=5"))
    before = (tmp_path / "run.json").read_bytes()

    def fill_up(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_up)
    with pytest.raises(OSError, match="No space left"):
        begin(tmp_path, compose("resume=auto"))
    assert (tmp_path / "run.json").read_bytes() == before


def test_the_newest_sweep_of_the_same_overrides(tmp_path: Path) -> None:
    def launched(name: str, *overrides: str, cells: str = "null") -> None:
        (tmp_path / name).mkdir(parents=True)
        of_hydra = [f"hydra.sweeper.cells={cells}"]
        content = json.dumps({"hydra": {"overrides": {"task": overrides, "hydra": of_hydra}}})
        (tmp_path / name / "multirun.yaml").write_text(content)

    launched("1/a", "seed=0,1", "rounds=3")
    launched("1/b", "rounds=9", "resume=auto", "seed=0,1", "tracking.wandb.mode=disabled")
    launched("2/a", "seed=0,1,2")

    def found(*overrides: str, resume: str | None = "auto", cells: str = "null") -> str:
        of_hydra = [f"hydra.sweeper.cells={cells}"]
        return choose_sweep_folder(str(tmp_path), "3/a", resume, overrides, of_hydra)

    assert found("seed=0,1") == str(tmp_path / "1/b")
    assert found("seed=0,1", "resume=auto", "engine.device=cpu") == str(tmp_path / "1/b")
    assert found("seed=2,1") == str(tmp_path / "3/a")
    assert found("seed=0,1", cells="[one]") == str(tmp_path / "3/a")
    assert found("seed=0,1", resume=None) == str(tmp_path / "3/a")
    assert found("seed=0,1", resume="there") == "there"

    launched("2/b", "rounds=3,6", "engine=choice(serial)", "seed=0")
    assert found("rounds=3,6", "engine=trainer", "seed=0") == str(tmp_path / "2/b")
    for others in ("rounds=6", "rounds=3,6,9", "engine=serial,trainer", "local.epochs=2"):
        assert found(others, "seed=0") == str(tmp_path / "3/a")  # jobs have other numbers


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", "1", "a: [", "hydra: 3", "hydra: {overrides: {}}", "\0", "(a pipe)", "(a folder)"],
)
def test_a_stray_sweep_file_stops_no_search(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stray = tmp_path / "1" / "b" / "multirun.yaml"
    stray.parent.mkdir(parents=True)
    if content == "(a folder)":
        stray.mkdir()
    elif content == "(a pipe)":
        os.mkfifo(stray)
    else:
        stray.write_text(content)
    sweep = {"hydra": {"overrides": {"task": ["seed=0,1"], "hydra": []}}}
    (tmp_path / "1" / "a").mkdir()
    (tmp_path / "1" / "a" / "multirun.yaml").write_text(json.dumps(sweep))
    found = choose_sweep_folder(str(tmp_path), "3/a", "auto", ["seed=0,1"], [])
    assert found == str(tmp_path / "1/a")
    assert caplog.text.count("skipped") == 1


def test_objective_of_a_summary() -> None:
    summary = {"metrics": {"a": {"final": 0.5}, "b": {"final": None}}}
    assert objective(summary, "a") == 0.5
    assert objective(summary, "b") != objective(summary, "b")  # NaN
    assert objective(summary, "c") != objective(summary, "c")
