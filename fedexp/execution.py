"""One run, from its checked config to its folder."""

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from rich.console import Console

from fedexp.build import assemble, deal, plan
from fedexp.checkpoint import save_weights
from fedexp.client import ClientModule
from fedexp.errors import InputError
from fedexp.schema import Config, Engine
from fedexp.tracking.figures import FigureFiles, partition_heatmap
from fedexp.tracking.jsonl import FILE_NAME as METRICS
from fedexp.tracking.jsonl import JsonLines, read_metrics
from fedexp.tracking.progress import Progress
from fedexp.tracking.summary import summarize, write_summary
from fedexp.tracking.tracker import Record, Tracker, Trackers


@dataclass(frozen=True)
class RunResult:
    """What a run leaves behind.

    Attributes:
        folder: where everything lies.
        metrics: one row a round, as in ``metrics.jsonl``.
        summary: as in ``summary.json``.
        model: the final global model, in eval mode.
    """

    folder: Path
    metrics: pd.DataFrame
    summary: dict[str, Any]
    model: ClientModule

    def objective(self, metric: str) -> float:
        """The last value of the headline ``metric``, NaN if no round measured it."""
        return float(self.summary["metrics"].get(metric, {"final": math.nan})["final"])


@dataclass(frozen=True)
class Launch:
    """How a run was started, for the record.

    Attributes:
        overrides: what the command line changed.
        choices: group -> option, for example ``{"algorithm": "fedavg"}``.
        sweep: the name of the sweep that the run is a job of, if any.
    """

    overrides: list[str]
    choices: dict[str, str | None]
    sweep: str | None = None


def execute(config: Config, folder: Path, launch: Launch) -> RunResult:
    """Run the experiment and leave everything in ``folder``.

    Args:
        config: the checked config.
        folder: the run's own folder; made if absent.
        launch: how the run was started.

    Raises:
        InputError: the config cannot work, or ``folder`` already holds a run.
    """
    start = time.perf_counter()
    if (folder / METRICS).exists() and (folder / METRICS).stat().st_size:
        raise InputError(f"hydra.run.dir={folder}: already holds a run; name another folder")
    planned = plan(config)
    fabric = _fabric(config.engine)
    data = deal(config, planned.source, fabric.device)
    folder.mkdir(parents=True, exist_ok=True)
    history = History()
    with _tracking(config, folder, launch) as tracker:
        trackers = Trackers([history, tracker])
        federation = assemble(planned, fabric, data, trackers, folder / "clients")
        with closing(federation.engine.resources.store):
            federation.run(config.rounds)
        model = federation.global_model(config.rounds)
        weights = model.weights
        summary = summarize(
            history.metrics,
            config.model_dump(mode="json"),
            launch.overrides,
            launch.choices,
            weights,
            str(fabric.device),
            time.perf_counter() - start,
        )
        write_summary(folder, summary)
        save_weights(weights, folder)
        tracker.finish(summary)
    return RunResult(folder, read_metrics(folder), summary, model)


def _fabric(engine: Engine) -> Fabric:
    """One device. Raises InputError if this machine has none of its kind."""
    try:
        return Fabric(accelerator=engine.device, devices=1, precision=engine.precision)
    except (RuntimeError, MisconfigurationException) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(
            f"engine.device={engine.device}: not on this machine ({reason})"
        ) from error


@contextmanager
def _tracking(config: Config, folder: Path, launch: Launch) -> Iterator[Tracker]:
    """The trackers that the config asks for; if the run fails they are told so."""
    settings = config.tracking
    trackers: list[Tracker] = [JsonLines(folder), FigureFiles(folder)]
    if settings.wandb.mode != "disabled":
        from fedexp.tracking.wandb import WandbTracker

        wandb = settings.wandb.model_copy(update={"group": settings.wandb.group or launch.sweep})
        values = config.model_dump(mode="json") | {"choices": launch.choices}
        trackers.append(WandbTracker(folder, wandb, values))
    if settings.tensorboard:
        from fedexp.tracking.tensorboard import TensorBoardTracker

        trackers.append(TensorBoardTracker(folder))
    # The bars of several jobs would garble each other.
    if settings.progress and launch.sweep is None:
        trackers.append(Progress(config.rounds, Console(stderr=True)))
    tracker = Trackers(trackers)
    try:
        yield tracker
    except BaseException:
        tracker.finish(None)
        raise


def draw_partition(config: Config, folder: Path) -> Path:
    """Draw who holds what to ``folder/partition.png``, without training. Raises InputError."""
    data = deal(config, plan(config).source, torch.device("cpu"))
    path = folder / "partition.png"
    folder.mkdir(parents=True, exist_ok=True)
    partition_heatmap(data.class_counts, data.description.classes).savefig(path)
    return path


class History(Tracker):
    """Remembers every round's metrics."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, float]] = []

    def log(self, record: Record) -> None:
        """Remember one round."""
        if record.metrics:
            self.metrics.append(record.metrics)
