import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from matplotlib.figure import Figure
from support import wandb_log
from support.federations import compose

from fedexp.config.schema import Wandb
from fedexp.errors import InputError
from fedexp.state.files import digest
from fedexp.state.saved_models import save_weights
from fedexp.tracking.figure_files import FigureFiles
from fedexp.tracking.follow import Guarded, check_trackers
from fedexp.tracking.jsonl import JsonLines, as_frame
from fedexp.tracking.tracker import Record, RunInfo, Tracker, Trackers
from fedexp.tracking.wandb import WandbTracker, save_report

SUMMARY = {"metrics": {"global/accuracy": {"final": 0.75, "best": 0.8, "mean_last5": 0.7}}}


@pytest.fixture(autouse=True)
def _private_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIR", "CACHE_DIR", "DATA_DIR", "CONFIG_DIR"):
        monkeypatch.setenv(f"WANDB_{name}", str(tmp_path / "elsewhere"))


def settings(**changes: Any) -> Wandb:
    values: dict[str, Any] = {
        "mode": "offline",
        "project": "test",
        "entity": None,
        "group": "sweep",
        "job_type": "fedavg",
        "name": None,
        "notes": None,
        "tags": ["short", "x" * 70],
        "id": None,
        "dir": None,
        "artifact": False,
        "init_timeout": 5,
        "finish_timeout": 30,
    }
    return Wandb(**(values | changes))


def figure() -> Figure:
    drawn = Figure(figsize=(1, 1), dpi=50)
    drawn.add_subplot().plot([0, 1])
    return drawn


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.message for each in caplog.records if each.name == "fedexp.tracking.wandb"]


@pytest.mark.parametrize("project", ["a/b", "a\\b", "a#b", "a?b", "a%b", "a:b", "", "x" * 129])
def test_a_project_that_wandb_refuses_is_named_before_data(project: str) -> None:
    if project:
        with pytest.raises(wandb.errors.UsageError):
            wandb.Settings(project=project)
    with pytest.raises(InputError) as caught:
        compose(f"tracking.wandb.project='{project}'")
    line = f"tracking.wandb.project={project}: should have 1 to 128 characters, without any of "
    assert str(caught.value) == line + r"/ \ # ? % :"


def test_offline_record_equals_metrics_jsonl(tmp_path: Path) -> None:
    config = {"seed": 3, "partition": {"beta": 0.3, "options": [1, None]}}
    run = RunInfo(tmp_path, config=config, choices={"algorithm": "fednh", "partition": "iid"})
    tracker = Trackers([JsonLines(run), WandbTracker(run, settings())])
    tracker.log(Record(0, figures={"heatmap/partition": figure()}))
    for each in (1, 2, 3):
        metrics = {"global/accuracy": each / 4, "train/loss": 1 / each}
        tracker.log(Record(each, metrics, {"cat": 0.5, "dog": each / 4}))
    costs = {"total": {"cost/upload_bytes": 12}, "wall_time_s": 1.5}
    tracker.finish(SUMMARY | costs | {"warnings": ["this run learned nothing"]})

    (path,) = wandb_log.run_files(tmp_path)
    summary = wandb_log.summary(path)
    assert summary["warnings"] == "this run learned nothing"
    assert summary["global/accuracy/best"] == 0.8
    assert (summary["cost/upload_bytes/total"], summary["wall_time_s"]) == (12, 1.5)
    first, *rounds = wandb_log.history(path)
    frame = as_frame((tmp_path / "metrics.jsonl").read_bytes())
    assert first["round"] == 0
    assert first["heatmap/partition/_type"] == "image-file"
    assert rounds == frame[["round", "global/accuracy", "train/loss"]].to_dict("records")
    choices = {"algorithm": "fednh", "partition": "iid"}
    columns = {"algorithm": "fednh", "partition_option": "iid"}
    assert wandb_log.config(path) == config | columns | {"choices": choices}


@pytest.mark.parametrize(("name", "expected"), [(None, "fednh-digits-dir0.1-s2"), ("own", "own")])
def test_a_run_says_what_it_is(name: str | None, expected: str, tmp_path: Path) -> None:
    choices = {"algorithm": "fednh", "data": "digits", "partition": "dirichlet"}
    run = RunInfo(tmp_path, config={"seed": 2, "partition": {"beta": 0.1}}, choices=choices)
    WandbTracker(run, settings(name=name)).finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path)
    (started,) = [each.run for each in wandb_log.records(path) if each.HasField("run")]
    assert started.display_name == expected


@pytest.mark.parametrize("artifact", [True, False])
def test_model_and_partition_are_artifacts_if_asked_for(artifact: bool, tmp_path: Path) -> None:
    weights = save_weights({"w": torch.ones(2)}, tmp_path)
    for name in ("run.json", "data.json", "metrics.jsonl"):
        (tmp_path / name).write_text(name)
    (tmp_path / "partition.csv").write_text("client,cat\n0,3\n")
    run = RunInfo(tmp_path, run_id="abc123")
    WandbTracker(run, settings(artifact=artifact)).finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path)
    found = [each.artifact for each in wandb_log.records(path) if each.HasField("artifact")]
    if not artifact:
        assert found == []
        return
    model, partition = found
    assert (model.name, model.type) == ("model-abc123", "model")
    files = {entry.path: entry.size for entry in model.manifest.contents}
    # What ``fedexp.load`` reads of a run.
    assert files.pop("checkpoints/final.pt") == weights.stat().st_size
    assert set(files) == {"run.json", "data.json", "partition.csv"}
    assert partition.type == "partition"
    assert partition.name == f"partition-{digest((tmp_path / 'partition.csv').read_bytes())[:12]}"


def test_a_report_is_an_artifact_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "report"
    (folder / "figures").mkdir(parents=True)
    for name in ("report.md", "figures/curve.png"):
        (folder / name).write_text(name)
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: init(**given | {"mode": "offline"}))
    save_report(folder, "lab", "test", [])
    (path,) = wandb_log.run_files(folder)
    by_kind = {each.WhichOneof("record_type"): each for each in wandb_log.records(path)}
    assert (by_kind["run"].run.project, by_kind["run"].run.job_type) == ("test", "report")
    report = by_kind["artifact"].artifact
    assert (report.name, report.type) == ("report", "report")
    found = {each.path for each in report.manifest.contents}
    assert found == {"report.md", "figures/curve.png"}


def test_the_best_value_is_kept_while_the_run_lives(tmp_path: Path) -> None:
    run = RunInfo(tmp_path, headlines={"global/accuracy": "higher", "train/loss": "lower"})
    tracker = WandbTracker(run, settings())
    for each, (accuracy, loss) in enumerate([(0.25, 2.0), (0.75, 1.0), (0.5, 1.5)], start=1):
        tracker.log(Record(each, {"global/accuracy": accuracy, "train/loss": loss, "time/s": each}))
    tracker.finish(None)

    (path,) = wandb_log.run_files(tmp_path)
    summary = wandb_log.summary(path)
    assert summary["global/accuracy"] == {"max": 0.75, "last": 0.5}
    assert summary["train/loss"] == {"min": 1.0, "last": 1.5}
    assert summary["time/s"] == 3


def test_summary_has_headlines_and_the_last_class_accuracies(tmp_path: Path) -> None:
    tracker = WandbTracker(RunInfo(tmp_path), settings())
    tracker.log(Record(1, {"global/accuracy": 0.75}, {"cat": 0.5}))
    tracker.finish(SUMMARY)

    (path,) = wandb_log.run_files(tmp_path)
    summary = wandb_log.summary(path)
    found = {statistic: summary[f"global/accuracy/{statistic}"] for statistic in ("final", "best")}
    assert found == {"final": 0.75, "best": 0.8}
    assert summary["global/per_class_accuracy"]["nrows"] == 1


def test_class_accuracies_are_logged_beside_figures_only(tmp_path: Path) -> None:
    tracker = WandbTracker(RunInfo(tmp_path), settings())
    tracker.log(Record(1, {"global/accuracy": 0.5}, {"cat": 0.5}))
    tracker.log(Record(2, {"global/accuracy": 0.5}, {"cat": 0.5}, {"heatmap/x": figure()}))
    tracker.finish(None)

    (path,) = wandb_log.run_files(tmp_path)
    tables = [
        any(key.startswith("global/per_class_accuracy") for key in row)
        for row in wandb_log.history(path)
    ]
    assert tables == [False, True]


@pytest.mark.parametrize(("summary", "code"), [(SUMMARY, 0), (None, 1)])
def test_run_is_described_and_closed(
    tmp_path: Path, summary: dict[str, Any] | None, code: int
) -> None:
    WandbTracker(RunInfo(tmp_path), settings()).finish(summary)

    (path,) = wandb_log.run_files(tmp_path)
    by_kind = {each.WhichOneof("record_type"): each for each in wandb_log.records(path)}
    run = by_kind["run"].run
    assert (run.project, run.run_group, run.job_type) == ("test", "sweep", "fedavg")
    assert set(run.tags) == {"short", "x" * 64}
    assert by_kind["exit"].exit.exit_code == code


def test_every_metric_is_drawn_against_the_round(tmp_path: Path) -> None:
    WandbTracker(RunInfo(tmp_path), settings()).finish(SUMMARY)

    (path,) = wandb_log.run_files(tmp_path)
    steps = [each.metric for each in wandb_log.records(path) if each.HasField("metric")]
    assert [(step.name or step.glob_name, step.step_metric) for step in steps] == [
        ("round", ""),
        ("*", "round"),
    ]


class Own(Tracker):
    """Logs to W&B's run by itself, at the run's step."""

    def log(self, record: Record) -> None:
        assert wandb.run is not None
        wandb.run.log({"own/square": record.round**2}, step=record.round)


@pytest.mark.parametrize("own_is_first", [True, False])
def test_what_another_tracker_logs_at_a_round_joins_its_row(
    own_is_first: bool, tmp_path: Path
) -> None:
    tracker = WandbTracker(RunInfo(tmp_path), settings())
    both = Trackers([Own(), tracker] if own_is_first else [tracker, Guarded("own", Own())])
    for each in (1, 2):
        both.log(Record(each, {"global/accuracy": each / 4}))
    both.finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path)
    assert wandb_log.history(path) == [
        {"round": 1, "global/accuracy": 0.25, "own/square": 1},
        {"round": 2, "global/accuracy": 0.5, "own/square": 4},
    ]


def test_two_runs_in_one_process_are_separate(tmp_path: Path) -> None:
    for seed in (0, 1):
        tracker = WandbTracker(RunInfo(tmp_path / str(seed), config={"seed": seed}), settings())
        tracker.log(Record(1, {"global/accuracy": float(seed)}))  # and no finish

    for seed in (0, 1):
        wandb.finish()
        (path,) = wandb_log.run_files(tmp_path / str(seed))
        assert wandb_log.config(path)["seed"] == seed
        assert [row["global/accuracy"] for row in wandb_log.history(path)] == [seed]


def test_disabled_leaves_nothing(tmp_path: Path) -> None:
    tracker = WandbTracker(RunInfo(tmp_path), settings(mode="disabled"))
    tracker.log(Record(1, {"global/accuracy": 0.5}))
    tracker.finish(SUMMARY)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_nobody_runs_leaves_a_complete_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens
    tracker = WandbTracker(RunInfo(tmp_path, run_id="abc123"), settings(mode="online"))
    tracker.log(Record(1, {"global/accuracy": 0.5}))
    tracker.finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path)
    assert path.name == "run-abc123.wandb"
    assert wandb_log.history(path) == [{"round": 1, "global/accuracy": 0.5}]
    last = [each.message for each in caplog.records if each.name.endswith("wandb_upload")][-1]
    assert last.endswith(f"; to complete: wandb sync {path.parent}")


def test_a_resumed_run_logs_its_whole_history_under_the_same_id(tmp_path: Path) -> None:
    """The last offline record replaces the others when they are synced."""
    rounds = [Record(each, {"global/accuracy": each / 4}, {"cat": each / 4}) for each in (1, 2, 3)]
    run = RunInfo(tmp_path, run_id="abc123")
    first = Trackers([FigureFiles(run), WandbTracker(run, settings())])
    first.log(Record(0, figures={"heatmap/partition": figure()}))
    first.log(rounds[0])
    first.log(replace(rounds[1], figures={"heatmap/prototype_similarity": figure()}))
    first.finish(None)
    time.sleep(1.1)  # W&B names folders by the second

    resumed = WandbTracker(replace(run, resumed=True, past=rounds[:2]), settings())
    resumed.log(rounds[2])
    resumed.finish(SUMMARY)
    _, path = wandb_log.run_files(tmp_path)
    assert path.name == "run-abc123.wandb"
    start, *found = wandb_log.history(path)
    assert start["heatmap/partition/_type"] == "image-file"
    assert [row["round"] for row in found] == [1, 2, 3]
    assert [row["global/accuracy"] for row in found] == [0.25, 0.5, 0.75]
    pictured = [row for row in found if "heatmap/prototype_similarity/_type" in row]
    assert [row["round"] for row in pictured] == [2]


@pytest.mark.parametrize(("group", "expected"), [(None, "lr_sweep"), ("mine", "mine")])
def test_jobs_of_a_sweep_are_grouped_by_its_name(
    tmp_path: Path, group: str | None, expected: str
) -> None:
    WandbTracker(RunInfo(tmp_path, sweep="lr_sweep"), settings(group=group)).finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path)
    (run,) = [each.run for each in wandb_log.records(path) if each.HasField("run")]
    assert run.run_group == expected


def test_no_start_at_all_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(**_: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(wandb, "init", broken)
    tracker = WandbTracker(RunInfo(tmp_path), settings())
    tracker.log(Record(1, {"global/accuracy": 0.5}))
    tracker.finish(SUMMARY)
    assert warnings(caplog) == ["W&B: cannot record, going on without it (disk full)"]


@pytest.mark.parametrize("method", ["log", "finish"])
def test_an_error_turns_it_off_and_does_not_raise(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = WandbTracker(RunInfo(tmp_path), settings())

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(wandb.Run, method, broken)
        tracker.log(Record(1, {"global/accuracy": 0.5}))
        tracker.log(Record(2, {"global/accuracy": 0.5}))
        tracker.finish(SUMMARY)
    wandb.finish()
    (warning,) = warnings(caplog)
    assert warning.endswith("(gone)")


def test_long_records_are_read_back_across_blocks(tmp_path: Path) -> None:
    tracker = WandbTracker(RunInfo(tmp_path, config={"long": "x" * 100_000}), settings())
    tracker.finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path)
    assert wandb_log.config(path)["long"] == "x" * 100_000


def test_the_record_has_what_the_variables_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("NAME", "wrong"), ("RUN_ID", "wrong"), ("TAGS", "wrong")):
        monkeypatch.setenv(f"WANDB_{name}", value)  # the settings come before them
    chosen = {"notes": "why", "name": "night", "tags": ["a"], "dir": tmp_path / "scratch"}
    run = RunInfo(tmp_path / "run", run_id="abc123")
    run.folder.mkdir()
    WandbTracker(run, settings(**chosen)).finish(SUMMARY)
    (path,) = wandb_log.run_files(tmp_path / "scratch")
    (started,) = [each.run for each in wandb_log.records(path) if each.HasField("run")]
    assert (started.run_id, started.display_name, started.notes) == ("abc123", "night", "why")
    assert list(started.tags) == ["a"]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("WANDB_RESUME", "sometimes", "WANDB_RESUME=sometimes: W&B refuses it"),
        ("WANDB_TAGS", "a,,b", "WANDB_TAGS=a,,b: W&B refuses it"),
        ("WANDB_SILENT", "quite", "WANDB_SILENT=quite: W&B refuses it"),
        ("WANDB_API_KEY", " secret", "WANDB_API_KEY: W&B refuses it"),
    ],
)
def test_a_variable_that_wandb_refuses_is_named(
    name: str, value: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_trackers(compose().tracking.trackers)
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError) as caught:
        check_trackers(compose().tracking.trackers)
    assert str(caught.value).startswith(line)
    assert "secret" not in str(caught.value)
    check_trackers(compose("tracking.wandb.mode=disabled").tracking.trackers)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"WANDB_DIR or tracking\.wandb\.dir=.*can be written"):
        check_trackers(compose(f"tracking.wandb.dir={tmp_path}/file/w").tracking.trackers)


def test_wandb_may_speak_if_its_variable_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[wandb.Settings] = []
    init = wandb.init
    monkeypatch.setattr(
        wandb, "init", lambda **those: started.append(those["settings"]) or init(**those)
    )
    monkeypatch.setenv("WANDB_CONSOLE", "auto")
    WandbTracker(RunInfo(tmp_path), settings()).finish(SUMMARY)
    set_ = started[0].model_fields_set
    assert ("silent" in set_, "console" in set_) == (True, False)
