import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.run_files import accuracies, write_run

import fedexp
from fedexp.cli.report import main
from fedexp.reporting.runs import read_runs


def test_runs_and_what_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path / "good", [], accuracies(0.25, 0.75))
    unfinished = write_run(tmp_path / "unfinished", ["seed=1"], accuracies(0.5), finished=False)
    write_run(tmp_path / "no_round", ["seed=2"], [], finished=False)
    damaged = write_run(tmp_path / "damaged", ["seed=3"])
    (damaged / "run.json").write_text('{"config": {"se')
    foreign = write_run(tmp_path / "foreign", ["seed=4"])
    (foreign / "run.json").write_text('{"name": "of another program"}')
    strange = write_run(tmp_path / "strange", ["seed=5"])
    (strange / "metrics.jsonl").write_text('{"round": 1}\nno JSON\n')
    cut = write_run(tmp_path / "cut", ["seed=6"], accuracies(0.5, 0.6), finished=False)
    text = (cut / "metrics.jsonl").read_text()
    (cut / "metrics.jsonl").write_text(text[:-9])
    (tmp_path / "log_only" / ".hydra").mkdir(parents=True)
    (tmp_path / "log_only" / ".hydra" / "overrides.yaml").write_text("[]")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("no folder")
    main([str(tmp_path), str(tmp_path / "empty"), str(tmp_path / "x"), str(tmp_path / "notes.txt")])
    said = capsys.readouterr()
    # The cut one lacks its second round.
    assert "3 runs, 2 finished; 8 folders left out\n" in said.out
    assert str(unfinished) not in said.out  # its config has one round
    assert said.err.splitlines() == [
        f"{damaged}: its run.json is damaged or another program's",
        f"{foreign}: its run.json is damaged or another program's",
        f"{strange}: metrics.jsonl cannot be read: Expecting value: line 1 column 1 (char 0)",
        f"{tmp_path / 'log_only'}: not begun, or no run of fedexp: has no run.json",
        f"{tmp_path / 'no_round'}: no round was finished",
        f"{tmp_path / 'empty'}: no run in it",
        f"{tmp_path / 'x'}: does not exist",
        f"{tmp_path / 'notes.txt'}: is not a folder",
        f"{cut}: 1 of 2 rounds, left out of means; to finish it: fedexp resume={cut}",
    ]


def test_nothing_readable_is_exit_code_1(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path)])
    assert error.value.code == f"fedexp-report: {tmp_path}: no run in it"


def test_files_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n, name in enumerate(("fedavg", "fednh")):
        history = accuracies(0.1 + 0.3 * n, 0.7)
        write_run(tmp_path / "runs" / str(n), [f"algorithm={name}"], history)
    target = str(tmp_path / "report")
    options = ["--to", target, "--format", "md", "--targets", "0.4", "--statistic", "best"]
    main([str(tmp_path / "runs"), "--baseline", "algorithm=fedavg", *options])
    assert f"{target}/report.md" in capsys.readouterr().out
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| algorithm | n | global/accuracy | rounds_to/0.4 |" in text
    assert "| fednh | 1 | 0.7000 | 1 |" in text
    assert "| fednh | 1 | +0.0000 | -1 |" in text
    assert "Values: best" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "md,doc"], "doc: choose from md, csv, tex, html, pdf"),
        (["--targets", "0.5,high"], "0.5,high: should be numbers joined by commas"),
        (["--targets", "75"], "75: should be an accuracy between 0 and 1"),
        (["--statistic", "last"], "invalid choice: 'last'"),
        (["--format", "md", "--figures", "all"], "--format and --figures: only with --to"),
        (["--interest", "0.01"], "--interest: only with --factorial"),
    ],
)
def test_mistyped_options(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path), *options])
    assert message in capsys.readouterr().err


def test_links_are_followed_once_and_not_to_other_folders(tmp_path: Path) -> None:
    real = write_run(tmp_path / "elsewhere" / "0")
    here = tmp_path / "here"
    here.mkdir()
    (here / "outside").symlink_to(real)
    (here / "circle").symlink_to(here)
    (here / "nowhere").symlink_to(here / "nowhere")
    write_run(here / "inner" / "1", ["seed=1"])
    (here / "linked").symlink_to(here / "inner")
    (here / "summary.json").write_text("{}")
    runs, problems = read_runs([here])
    assert [run.folder.name for run in runs] == ["1"]
    assert problems == [
        f"{here / 'outside'}: a link out of {here}, not followed",
        f"{here}: not begun, or no run of fedexp: has no run.json",
    ]
    assert [run.folder for run in read_runs([here / "outside"])[0]] == [here / "outside"]


def test_a_metric_that_is_no_number_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [], [{"global/accuracy": "high"}])  # type: ignore[dict-item]
    runs, problems = read_runs([tmp_path])
    assert not runs
    assert problems == [
        f"{tmp_path / '0'}: metrics.jsonl cannot be read: round 1: global/accuracy is no number"
    ]


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    write_run(tmp_path / "0")
    (tmp_path / "report").write_text("a file")
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path / "0"), "--to", str(tmp_path / "report")])
    assert str(error.value.code).endswith("report: cannot be made (File exists)")


def test_a_mistyped_baseline_is_one_line(tmp_path: Path) -> None:
    write_run(tmp_path / "0", ["algorithm=fednh"])
    write_run(tmp_path / "1", ["algorithm=ditto"])
    with pytest.raises(SystemExit) as error:
        main([str(tmp_path), "--baseline", "algorithm=fedavgg"])
    assert error.value.code == (
        "fedexp-report: baseline=algorithm=fedavgg: no run has it; there are: algorithm=fednh, "
        "algorithm=ditto"
    )


def test_from_python(tmp_path: Path) -> None:
    write_run(tmp_path / "0")
    assert fedexp.report(tmp_path).results["mean"].tolist()[0] == 0.5


def test_reading_imports_neither_torch_nor_wandb() -> None:
    code = (
        "import sys, json, fedexp.reporting.report;"
        "print(json.dumps(sorted({'torch', 'matplotlib', 'wandb'} & set(sys.modules))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
