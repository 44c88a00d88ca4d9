"""All that follows one run, as the config asks for it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from fedexp.config.launch import Launch
from fedexp.config.schema import Config
from fedexp.state.run_folder import Identity
from fedexp.tracking.figures import FigureFiles
from fedexp.tracking.jsonl import JsonLines
from fedexp.tracking.progress import Progress
from fedexp.tracking.tracker import Record, Tracker, Trackers


@contextmanager
def follow(
    config: Config,
    folder: Path,
    launch: Launch,
    run: Identity | None,
    lines: bytes,
    past: Sequence[Record],
) -> Iterator[Tracker]:
    """The trackers that the config asks for; if the run fails they are told so.

    ``lines`` and ``past`` are the rounds that a resumed run has behind it. A process that has not
    claimed the folder, and so has no ``run``, tracks nothing.
    """
    if run is None:
        yield Tracker()
        return
    settings = config.tracking
    trackers: list[Tracker] = [JsonLines(folder, lines), FigureFiles(folder)]
    if settings.wandb.mode != "disabled":
        from fedexp.tracking.wandb import WandbTracker

        wandb = settings.wandb.model_copy(update={"group": settings.wandb.group or launch.sweep})
        values = config.model_dump(mode="json") | {"choices": launch.choices}
        known = past if run.known else None
        trackers.append(WandbTracker(folder, wandb, values, run.wandb_id, known))
    if settings.tensorboard:
        from fedexp.tracking.tensorboard import TensorBoardTracker

        trackers.append(TensorBoardTracker(folder, len(past)))
    # The bars of several jobs would garble each other.
    if settings.progress and launch.sweep is None:
        trackers.append(Progress(config.rounds, Console(stderr=True), len(past)))
    tracker = Trackers(trackers)
    try:
        yield tracker
    except BaseException:
        tracker.finish(None)
        raise


class History(Tracker):
    """Remembers every round's metrics, those of the rounds in ``past`` to begin with."""

    def __init__(self, past: Sequence[Record] = ()) -> None:
        self.metrics: list[Mapping[str, float]] = [record.metrics for record in past]

    def log(self, record: Record) -> None:
        """Remember one round."""
        if record.metrics:
            self.metrics.append(record.metrics)
