import json
import math
from pathlib import Path

import pytest
from support.full_disk import files_up_to

from fedexp.tracking.jsonl import JsonLines, as_bytes, as_frame, parse_metrics, parse_records
from fedexp.tracking.tracker import Record, RunInfo


def test_a_line_a_round_is_on_disk_at_once(tmp_path: Path) -> None:
    tracker = JsonLines(RunInfo(tmp_path))
    tracker.log(Record(0))
    tracker.log(Record(1, {"train/loss": 2.5}))
    tracker.log(Record(2, {"global/accuracy": 0.5}, {"cat": 0.25, "dog": 0.75}))

    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    tracker.finish(None)
    assert [json.loads(line) for line in lines] == [
        {"round": 1, "train/loss": 2.5},
        {
            "round": 2,
            "global/accuracy": 0.5,
            "global/per_class_accuracy": {"cat": 0.25, "dog": 0.75},
        },
    ]


def test_read_back_as_a_frame(tmp_path: Path) -> None:
    tracker = JsonLines(RunInfo(tmp_path))
    tracker.log(Record(1, {"train/loss": math.inf}))
    tracker.log(Record(2, {"train/loss": 0.5, "global/accuracy": 1.0}, {"naïve": 0.25}))
    tracker.finish({})

    frame = as_frame((tmp_path / "metrics.jsonl").read_bytes())
    assert frame["round"].tolist() == [1, 2]
    assert frame["train/loss"].tolist() == pytest.approx([math.nan, 0.5], nan_ok=True)
    assert frame["global/accuracy"].tolist() == pytest.approx([math.nan, 1.0], nan_ok=True)
    assert frame["global/per_class_accuracy.naïve"].iloc[1] == 0.25
    assert frame.dtypes.map(str).tolist() == ["int64", "float64", "float64", "float64"]


def test_a_resumed_run_drops_the_lines_after_its_checkpoint(tmp_path: Path) -> None:
    tracker = JsonLines(RunInfo(tmp_path))
    for each in (1, 2, 3):
        tracker.log(Record(each, {"train/loss": math.nan if each == 2 else 1.0}, {"cat": 0.5}))
    tracker.finish(None)
    lines = (tmp_path / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "trai')  # killed while it was written

    past = b"".join(lines[:2])
    tracker = JsonLines(RunInfo(tmp_path, past=parse_records(past)))
    assert (tmp_path / "metrics.jsonl").read_bytes() == past
    tracker.log(Record(3, {"train/loss": 1.0}, {"cat": 0.5}))
    tracker.finish(None)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b"".join(lines)
    first, second = parse_records(past)
    assert first == Record(1, {"train/loss": 1.0}, {"cat": 0.5})
    assert math.isnan(second.metrics["train/loss"])


def test_a_full_disk_is_an_error_at_once(tmp_path: Path) -> None:
    tracker = JsonLines(RunInfo(tmp_path))
    with files_up_to(10), pytest.raises(OSError, match="too large"):
        tracker.log(Record(1, {"train/loss": 0.5}))
    tracker.finish(None)
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"round": '  # not written twice


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(value: float) -> None:
    found = as_bytes({"a": [value, 1.5], "b": {"c": value}})
    assert found == b'{"a": [null, 1.5], "b": {"c": null}}\n'


def test_metrics_without_class_accuracies(tmp_path: Path) -> None:
    tracker = JsonLines(RunInfo(tmp_path))
    tracker.log(Record(1, {"global/accuracy": 0.5, "global/loss": math.nan}, {"cat": 0.25}))
    tracker.log(Record(2, {"global/accuracy": 0.75}))
    tracker.finish(None)
    first, second = parse_metrics((tmp_path / "metrics.jsonl").read_bytes())
    assert first.keys() == {"global/accuracy", "global/loss"}
    assert math.isnan(first["global/loss"])
    assert second == {"global/accuracy": 0.75}
