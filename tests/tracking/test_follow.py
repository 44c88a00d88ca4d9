"""Trackers named in the config, among them some that this file defines."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import PositiveInt
from support.federations import compose

from fedexp.config.launch import Launch
from fedexp.errors import InputError
from fedexp.runtime.plan import plan
from fedexp.state.run_folder import Identity
from fedexp.tracking.figure_files import FigureFiles
from fedexp.tracking.follow import Guarded, check_trackers, follow
from fedexp.tracking.jsonl import JsonLines
from fedexp.tracking.tracker import Record, RunInfo, Tracker

HERE = "test_follow"
EVENTS: list[str] = []


class Lines(Tracker):
    """Writes accuracies as text: a user's own tracker."""

    def __init__(self, run: RunInfo, digits: PositiveInt = 2) -> None:
        self.run, self._digits = run, digits
        self._file = (run.folder / "lines.txt").open("w")

    def log(self, record: Record) -> None:
        self._file.write(f"{record.round} {record.metrics['global/accuracy']:.{self._digits}f}\n")

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self._file.write("failed" if summary is None else "done")
        self._file.close()


class Noted(Tracker):
    """Notes its calls; raises where it is told to."""

    def __init__(self, run: RunInfo, label: str, fails: str = "") -> None:
        EVENTS.append(f"{label} starts")
        if fails == "start":
            raise ConnectionError("no server")
        self._label, self._fails = label, fails

    def log(self, record: Record) -> None:
        EVENTS.append(f"{self._label} logs {record.round}")
        if self._fails == "log":
            raise ValueError("no\nroom")

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        EVENTS.append(f"{self._label} finishes with {summary}")
        if self._fails == "finish":
            raise ValueError("gone")


class NotATracker:
    """Lacks the contract."""


@pytest.fixture(autouse=True)
def _no_events() -> None:
    EVENTS.clear()


def entry(name: str, target: str, **arguments: str) -> list[str]:
    values = {"_target_": f"{HERE}.{target}", **arguments}
    return [f"+tracking.trackers.{name}.{key}={value}" for key, value in values.items()]


def started(
    folder: Path, *overrides: str, past: Sequence[Record] = (), sweep: str | None = None
) -> Any:
    """The context manager of a run's trackers; W&B, TensorBoard and the bar are off."""
    config = compose("tracking.wandb.mode=disabled", "tracking.progress=false", *overrides)
    launch = Launch(["rounds=3"], {"model": "mlp"}, sweep)
    return follow(config, folder, launch, Identity({}, "abc123", known=bool(past)), past)


def test_a_tracker_from_outside_records_a_run(tmp_path: Path) -> None:
    with started(tmp_path, *entry("lines", "Lines", digits="3")) as tracker:
        tracker.log(Record(1, {"global/accuracy": 0.5}))
        tracker.log(Record(2, {"global/accuracy": 0.625}))
        tracker.finish({})
    assert (tmp_path / "lines.txt").read_text() == "1 0.500\n2 0.625\ndone"
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def test_what_a_tracker_is_given(tmp_path: Path) -> None:
    past = [Record(1, {"train/loss": 2.0})]
    target = entry("lines", "Lines")
    with started(tmp_path, *target, "rounds=7", past=past, sweep="lr") as tracker:
        run = tracker.trackers[-1]._tracker.run
        tracker.finish({})
    assert (run.folder, run.rounds, run.rounds_done) == (tmp_path, 7, 1)
    assert (run.config["rounds"], run.config["model"]["_target_"]) == (7, "fedexp.models.mlp.mlp")
    assert (run.choices, run.overrides, run.sweep) == ({"model": "mlp"}, ["rounds=3"], "lr")
    assert (run.run_id, run.resumed, run.past) == ("abc123", True, past)
    assert RunInfo(tmp_path).rounds_done == 0


def test_metrics_jsonl_comes_first_and_null_leaves_one_out(tmp_path: Path) -> None:
    reordered = [
        "~tracking.trackers",
        *entry("mine", "Noted", label="mine"),
        "+tracking.trackers.figures._target_=fedexp.tracking.figure_files.FigureFiles",
        "+tracking.trackers.jsonl._target_=fedexp.tracking.jsonl.JsonLines",
        "+tracking.trackers.wandb=null",
    ]
    with started(tmp_path, *reordered) as tracker:
        kinds = [type(getattr(each, "_tracker", each)) for each in tracker.trackers]
        tracker.finish({})
    assert kinds == [JsonLines, Noted, FigureFiles]


def test_an_entry_can_be_disabled(tmp_path: Path) -> None:
    with started(tmp_path, *entry("mine", "Noted", label="mine", enabled="false")) as tracker:
        tracker.finish({})
    assert EVENTS == []


def test_a_process_without_the_folder_tracks_nothing(tmp_path: Path) -> None:
    config = compose(*entry("mine", "Noted", label="mine"))
    with follow(config, tmp_path, Launch([], {}), None, []) as tracker:
        tracker.log(Record(1, {"train/loss": 1.0}))
    assert EVENTS == list(tmp_path.iterdir()) == []


def test_an_error_in_log_is_one_warning_and_ends_only_that_tracker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    overrides = [
        *entry("broken", "Noted", label="broken", fails="log"),
        *entry("other", "Noted", label="other"),
    ]
    with started(tmp_path, *overrides) as tracker:
        tracker.log(Record(1, {"train/loss": 1.0}))
        tracker.log(Record(2, {"train/loss": 1.0}))
        tracker.finish({})
    assert EVENTS[2:] == [
        "broken logs 1",
        "other logs 1",
        "other logs 2",
        "other finishes with {}",
        "broken finishes with {}",
    ]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        "tracking.trackers.broken: round 1 could not be logged, going on without it "
        "(ValueError: no)"
    ]


def test_an_error_in_finish_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    guarded = Guarded("mine", Noted(RunInfo(Path()), "mine", fails="finish"))
    guarded.finish(None)
    (warning,) = caplog.messages
    assert warning.startswith("tracking.trackers.mine: could not finish")
    assert warning.endswith("(ValueError: gone)")


def test_an_interrupt_is_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    guarded = Guarded("mine", Noted(RunInfo(Path()), "mine"))
    monkeypatch.setattr(Noted, "log", interrupted)
    with pytest.raises(KeyboardInterrupt):
        guarded.log(Record(1))


def test_an_error_of_an_essential_tracker_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(JsonLines, "log", full)
    with (
        pytest.raises(OSError, match="disk full"),
        started(tmp_path, *entry("mine", "Noted", label="mine")) as tracker,
    ):
        tracker.log(Record(1, {"train/loss": 1.0}))
    assert EVENTS == ["mine starts", "mine finishes with None"]


def test_an_error_at_the_start_stops_the_run_and_finishes_the_others(tmp_path: Path) -> None:
    overrides = [
        *entry("other", "Noted", label="other"),
        *entry("broken", "Noted", label="broken", fails="start"),
    ]
    with pytest.raises(ConnectionError) as caught, started(tmp_path, *overrides):
        pytest.fail("started")
    assert caught.value.__notes__ == ["while starting tracking.trackers.broken"]
    assert EVENTS == ["other starts", "broken starts", "other finishes with None"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["+tracking.trackers.csv._target_=nowhere.Csv"],
            "tracking.trackers.csv._target_=nowhere.Csv: cannot be imported (No module named",
        ),
        (
            entry("mine", "NotATracker"),
            f"tracking.trackers.mine._target_={HERE}.NotATracker: should be a subclass of "
            "fedexp.tracking.tracker.Tracker",
        ),
        (
            [f"tracking.trackers.jsonl._target_={HERE}.Lines"],
            f"tracking.trackers.jsonl._target_={HERE}.Lines: should be a subclass of "
            "fedexp.tracking.jsonl.JsonLines",
        ),
        (
            entry("lines", "Lines", digits="0"),
            "tracking.trackers.lines.digits=0: should be greater than 0",
        ),
        (
            entry("lines", "Lines", width="3"),
            "tracking.trackers.lines.width: unknown key; there are digits",
        ),
        (["tracking.trackers.jsonl=null"], "tracking.trackers.jsonl: cannot be left out"),
        (
            ["+tracking.trackers.jsonl.enabled=false"],
            "tracking.trackers.jsonl: cannot be left out",
        ),
        (
            ["tracking.trackers.figures=5"],
            "tracking.trackers.figures=5: is a group of keys; there are tracking.trackers.figures.",
        ),
        (
            ["+tracking.trackers.figures.enabled=maybe"],
            "tracking.trackers.figures.enabled=maybe: should be a valid boolean",
        ),
    ],
)
def test_a_wrong_entry_is_one_line_before_data(
    overrides: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "fedexp.data.readers.digits.Digits.load", lambda *_: pytest.fail("data was loaded")
    )
    with pytest.raises(InputError) as caught:
        plan(compose(*overrides))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_checking_starts_nothing() -> None:
    config = compose(*entry("mine", "Noted", label="mine"))
    check_trackers(config.tracking.trackers)
    assert EVENTS == []
