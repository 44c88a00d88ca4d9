import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedexp.tracking.progress import Progress, how_to_upload, print_report
from fedexp.tracking.tracker import Record, RunInfo

SUMMARY: dict[str, Any] = {
    "metrics": {
        "global/accuracy": {"final": 0.9123, "best": 0.95, "mean_last5": 0.9},
        "train/loss": {"final": 0.5, "best": 0.25, "mean_last5": 0.75},
    },
    "total": {"cost/download_bytes": 12_345_678, "cost/upload_bytes": 999},
    "rounds": 30,
    "wall_time_s": 12.34,
    "device": "cpu",
    "overrides": ["algorithm=fedavg", "partition.alphas=[0.1,1]"],
}


def terminal(*, live: bool, width: int = 80) -> Console:
    return Console(file=StringIO(), force_terminal=live, width=width, color_system=None)


def output(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def last_frame(console: Console) -> str:
    return re.split(r"\x1b\[2K|\r", output(console).rstrip())[-1]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Console:
    """A terminal in place of standard error."""
    console = terminal(live=True)
    monkeypatch.setattr("fedexp.tracking.progress.Console", lambda **_: console)
    return console


def test_bar_keeps_the_latest_accuracies(screen: Console, tmp_path: Path) -> None:
    progress = Progress(RunInfo(tmp_path, rounds=30))
    progress.log(Record(11, {"global/accuracy": 0.5, "personal/accuracy_local": 0.87}))
    progress.log(Record(12, {"global/accuracy": 0.912}))
    progress.log(Record(13, {"train/loss": 1.0}))
    progress.finish(SUMMARY)

    frame = last_frame(screen)
    assert "round 13/30" in frame
    assert "accuracy 0.912 · personal 0.870" in frame
    assert re.search(r"\d:\d\d:\d\d left", frame)


def test_bar_of_a_resumed_run_starts_where_it_was(screen: Console, tmp_path: Path) -> None:
    progress = Progress(RunInfo(tmp_path, rounds=30, past=[Record(7, {"train/loss": 1.0})]))
    progress.finish(None)
    assert "round  7/30" in last_frame(screen)


def test_nothing_is_drawn_in_a_sweep(screen: Console, tmp_path: Path) -> None:
    progress = Progress(RunInfo(tmp_path, rounds=2, sweep="lr"))
    progress.log(Record(1, {"global/accuracy": 0.5}))
    progress.finish(None)
    assert output(screen) == ""


def test_nothing_is_drawn_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    console = terminal(live=False)
    monkeypatch.setattr("fedexp.tracking.progress.Console", lambda **_: console)
    progress = Progress(RunInfo(tmp_path, rounds=2))
    progress.log(Record(1, {"global/accuracy": 0.5}))
    progress.finish(None)
    assert output(console) == ""


def test_report_is_a_table_and_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("long " * 20) / "[brackets]"
    console = terminal(live=False)
    print_report(SUMMARY, folder, console)

    text = output(console)
    rows = [re.findall(r"[\w/.]+", line) for line in text.splitlines()]
    assert ["global/accuracy", "0.9123", "0.9500", "0.9000"] in rows
    assert ["train/loss", "0.5000", "0.2500", "0.7500"] in rows
    assert "12.3 MB down, 999 bytes up" in " ".join(text.split())
    assert f"Everything is in {folder}\n" in text


def test_bytes_that_were_not_counted_are_not_printed() -> None:
    console = terminal(live=False)
    print_report(SUMMARY | {"total": {}}, Path("run"), console)
    assert "30 rounds, 12.3 s on cpu" in output(console)
    assert " down" not in output(console)


def test_the_warnings_are_lines_before_the_folder_and_a_mark_in_a_sweep() -> None:
    summary = SUMMARY | {"warnings": ["this run learned nothing"]}
    console = terminal(live=False)
    print_report(summary, Path("run"), console)
    assert output(console).endswith("WARNING this run learned nothing\nEverything is in run\n")
    console = terminal(live=False)
    print_report(summary, Path("run"), console, brief=True)
    assert " · learned nothing · run\n" in output(console)


def test_another_warning_does_not_say_in_a_sweep_that_a_run_learned_nothing() -> None:
    summary = SUMMARY | {"warnings": ["since round 2 with changed code: loss (my_loss.py)"]}
    console = terminal(live=False)
    print_report(summary, Path("run"), console, brief=True)
    assert " · 12 s · see its warnings · run\n" in output(console)


def test_a_trial_of_a_search_shows_its_objective_alone() -> None:
    metrics = SUMMARY["metrics"] | {"validation/accuracy": {"final": 0.87654}}
    console = terminal(live=False)
    summary = SUMMARY | {"metrics": metrics}
    print_report(summary, Path("run"), console, brief=True, objective="validation/accuracy")
    assert " · validation/accuracy 0.8765 · 12 s · run\n" in output(console)
    assert "0.91" not in output(console)


def test_the_command_that_uploads_offline_records_is_printed(tmp_path: Path) -> None:
    assert how_to_upload(tmp_path, "*/wandb/offline-run-*") is None
    (tmp_path / "a b" / "0" / "wandb" / "offline-run-1").mkdir(parents=True)
    assert how_to_upload(tmp_path / "a b", "*/wandb/offline-run-*") == (
        f"Offline in W&B; to upload: wandb sync '{tmp_path}/a b'/*/wandb/offline-run-*"
    )
    (tmp_path / "a b" / "0" / "wandb" / "offline-run-1" / "run-1.wandb.synced").touch()
    assert how_to_upload(tmp_path / "a b", "*/wandb/offline-run-*") is None


@pytest.mark.parametrize(("rounds", "words"), [(1, "1 round,"), (2, "2 rounds,")])
def test_the_number_of_rounds_is_spelt_correctly(rounds: int, words: str) -> None:
    console = terminal(live=False, width=120)
    print_report(SUMMARY | {"rounds": rounds}, Path("run"), console)
    assert words in output(console)


def test_a_round_number_stands_alone_in_its_row() -> None:
    metrics = SUMMARY["metrics"] | {"rounds_to/0.6": {"final": 123}}
    console = terminal(live=False)
    print_report(SUMMARY | {"metrics": metrics}, Path("run"), console)
    (row,) = [line for line in output(console).splitlines() if "rounds_to" in line]
    assert re.findall(r"[^\s│|]+", row) == ["rounds_to/0.6", "123"]


def test_an_estimate_has_its_standard_error() -> None:
    metrics = {"personal/accuracy_local": {"final": 0.9, "best": 0.95, "standard_error": 0.0125}}
    console = terminal(live=False)
    print_report(SUMMARY | {"metrics": metrics}, Path("run"), console)
    (row,) = [line for line in output(console).splitlines() if "personal" in line]
    assert re.findall(r"[±0-9.]+", row) == ["0.9000", "±", "0.0125", "0.9500"]


def test_the_table_has_the_round_that_validation_chooses() -> None:
    metrics = {"global/accuracy": {"final": 0.9, "best": 0.9, "at_best_validation": 0.8125}}
    console = terminal(live=False, width=120)
    print_report(SUMMARY | {"metrics": metrics, "best_round": 17}, Path("run"), console)
    assert "round 17, best in validation" in output(console)
    (row,) = [line for line in output(console).splitlines() if "global/accuracy" in line]
    assert re.findall(r"0\.\d+", row) == ["0.9000", "0.9000", "0.8125"]


@pytest.mark.parametrize("overrides", [SUMMARY["overrides"], []])
def test_brief_report_is_one_line(overrides: list[str]) -> None:
    console = terminal(live=False, width=20)
    print_report({**SUMMARY, "overrides": overrides}, Path("multirun/3"), console, brief=True)
    start = "algorithm=fedavg partition.alphas=[0.1,1] · " if overrides else ""
    assert output(console) == f"{start}accuracy 0.912 · 12 s · multirun/3\n"
