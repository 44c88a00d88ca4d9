from pathlib import Path

from matplotlib.figure import Figure
from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]

from fedexp.tracking.tensorboard import TensorBoardTracker
from fedexp.tracking.tracker import Record, RunInfo


def test_scalars_and_figures_are_read_back(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(RunInfo(tmp_path))
    tracker.log(Record(0, figures={"heatmap/x": Figure(figsize=(2, 1), dpi=10)}))
    tracker.log(Record(1, {"global/accuracy": 0.25}))
    tracker.log(Record(3, {"global/accuracy": 0.75, "train/loss": 0.5}))
    tracker.finish({})

    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    steps = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert steps == {"global/accuracy": [(1, 0.25), (3, 0.75)], "train/loss": [(3, 0.5)]}
    (image,) = events.Images("heatmap/x")
    assert (image.step, image.width, image.height) == (0, 20, 10)


def test_a_resumed_run_does_not_show_rounds_after_its_checkpoint(tmp_path: Path) -> None:
    first = TensorBoardTracker(RunInfo(tmp_path))
    for each in (1, 2, 3):
        first.log(Record(each, {"train/loss": 1.0}))
    first.finish(None)
    resumed = TensorBoardTracker(RunInfo(tmp_path, past=[Record(1, {"train/loss": 1.0})]))
    resumed.log(Record(2, {"train/loss": 0.5}))
    resumed.finish({})

    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    values = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert values == [(1, 1.0), (2, 0.5)]


def test_a_run_that_starts_afresh_in_its_folder_shows_each_round_once(tmp_path: Path) -> None:
    for resumed, loss in ((False, 1.0), (True, 0.5)):
        tracker = TensorBoardTracker(RunInfo(tmp_path, resumed=resumed))
        for each in (1, 2)[: 1 if resumed else 2]:
            tracker.log(Record(each, {"train/loss": loss}))
        tracker.finish(None)
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(1, 0.5)]
