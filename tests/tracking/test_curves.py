"""The learning curves of a run, and their numbers."""

import csv
from pathlib import Path

from fedexp.tracking.curves import Curves
from fedexp.tracking.tracker import Record, RunInfo

HEADLINES = {"global/accuracy": "higher", "train/loss": "lower", "personal/accuracy": "higher"}
METRICS = [
    {"global/accuracy": 0.25, "train/loss": 2.0},
    {"global/accuracy": 0.5, "train/loss": 1.0, "personal/accuracy": 0.75},
    {"train/loss": 0.5, "other/accuracy": 1.0},
]


def test_headlines_are_drawn_with_their_numbers(tmp_path: Path) -> None:
    past = [Record(1, METRICS[0])]
    tracker = Curves(RunInfo(tmp_path, headlines=HEADLINES, past=past))
    tracker.log(Record(0))  # the partition, before training
    for round in (2, 3):
        tracker.log(Record(round, METRICS[round - 1]))
    tracker.finish({})
    assert (tmp_path / "figures/curves.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "figures/curves.csv").open() as file:
        header, *rows = csv.reader(file)
    # personal/accuracy has one round only: no curve
    assert header == ["round", "global/accuracy", "train/loss"]
    assert rows == [["1", "0.25", "2.0"], ["2", "0.5", "1.0"], ["3", "", "0.5"]]


def test_a_failed_run_and_a_single_round_have_no_curves(tmp_path: Path) -> None:
    failed = Curves(RunInfo(tmp_path, headlines=HEADLINES, past=[Record(1, METRICS[0])]))
    failed.log(Record(2, METRICS[1]))
    failed.finish(None)
    single = Curves(RunInfo(tmp_path, headlines=HEADLINES))
    single.log(Record(1, METRICS[0]))
    single.finish({})
    assert not (tmp_path / "figures").exists()
