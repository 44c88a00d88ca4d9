"""One run, from its checked config to its folder."""

import errno
import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities.exceptions import MisconfigurationException
from rich.console import Console

from fedexp.build import assemble, deal, plan
from fedexp.checkpoint import Checkpoint, Checkpoints, save_weights
from fedexp.client import ClientModule
from fedexp.errors import InputError
from fedexp.federation import Federation
from fedexp.interrupts import Interrupted, Interrupts
from fedexp.runs import SUMMARY, Identity, check, claim, objective, rounds_finished
from fedexp.schema import Config, Engine
from fedexp.tracking.figures import FigureFiles, partition_heatmap
from fedexp.tracking.jsonl import JsonLines, parse_records, read_metrics
from fedexp.tracking.progress import Progress
from fedexp.tracking.summary import summarize, write_summary
from fedexp.tracking.tracker import Record, Tracker, Trackers

LOGGER = logging.getLogger(__name__)

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


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
        return objective(self.summary, metric)


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
    """Run the experiment, or what is left of it, and leave everything in ``folder``.

    Args:
        config: the checked config.
        folder: the run's own folder; made if absent.
        launch: how the run was started.

    Raises:
        InputError: the config cannot work, ``folder`` is another run's, or its disk is full.
        Interrupted: Ctrl-C or SIGTERM; what was done is saved.
    """
    start = time.perf_counter()
    check(folder, config)
    planned = plan(config)
    fabric = _fabric(config.engine)
    data = deal(config, planned.source, fabric.device)
    with _room(folder), claim(folder, config) as run:
        checkpoints = Checkpoints(folder, config.checkpoint.keep)
        checkpoint = _where_to_go_on(checkpoints, config, folder, run, launch)
        start -= checkpoint.seconds if checkpoint else 0
        done, lines = (checkpoint.round, checkpoint.metrics) if checkpoint else (0, b"")
        past = parse_records(lines)
        history = History(past)
        with _tracking(config, folder, launch, run, lines, past) as tracker:
            trackers = Trackers([history, tracker])
            federation = assemble(planned, fabric, data, trackers, folder / "clients")
            store = federation.engine.resources.store
            with closing(store):
                if checkpoint:
                    checkpoint.restore(federation.server, store, fabric.device)
                _train(federation, config, done, checkpoints, start)
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
            save_weights(weights, folder)
            write_summary(folder, summary)
            tracker.finish(summary)
    return RunResult(folder, read_metrics(folder), summary, model)


def _where_to_go_on(
    checkpoints: Checkpoints, config: Config, folder: Path, run: Identity, launch: Launch
) -> Checkpoint | None:
    """The run's newest checkpoint, if it goes on from one; says what it does.

    Raises:
        InputError: the run came to its end and has no checkpoint to go on from.
    """
    if config.resume is None:
        return None
    checkpoint = checkpoints.latest()
    if checkpoint and checkpoint.round > config.rounds:
        raise InputError(f"rounds={config.rounds}: {folder} has {checkpoint.round} already")
    if not checkpoint and rounds_finished(folder):
        raise InputError(f"resume={folder}: is finished and has no checkpoint to go on from")
    if checkpoint:
        LOGGER.info("resume: %s goes on after round %d", folder, checkpoint.round)
    elif run.known:
        LOGGER.info("resume: %s has no checkpoint yet and starts afresh", folder)
    elif launch.sweep is None:
        LOGGER.info("resume: found no unfinished run like this one; starts afresh in %s", folder)
    shutil.rmtree(folder / "clients", ignore_errors=True)  # a killed process left them
    (folder / SUMMARY).unlink(missing_ok=True)  # the run is not finished any more
    return checkpoint


def _train(
    federation: Federation, config: Config, done: int, checkpoints: Checkpoints, start: float
) -> None:
    """The rounds that are left, with checkpoints. Raises Interrupted."""
    every, keep = config.checkpoint.every, config.checkpoint.keep
    with Interrupts() if keep else nullcontext() as interrupts:

        def checkpoint(round: int) -> None:
            asked = interrupts and interrupts.asked
            is_due = every and round % every == 0
            if keep and (is_due or asked or round == config.rounds):
                store = federation.engine.resources.store
                checkpoints.save(round, time.perf_counter() - start, federation.server, store)
            if asked and round < config.rounds:
                raise Interrupted(asked)

        federation.run(config.rounds, done, checkpoint)


@contextmanager
def _room(folder: Path) -> Iterator[None]:
    """A disk that is full, or fails, is one line."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); make room and go on by "
            f"resume={folder}"
        ) from error


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
def _tracking(
    config: Config,
    folder: Path,
    launch: Launch,
    run: Identity,
    lines: bytes,
    past: Sequence[Record],
) -> Iterator[Tracker]:
    """The trackers that the config asks for; if the run fails they are told so.

    ``lines`` and ``past`` are the rounds that a resumed run has behind it.
    """
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


def draw_partition(config: Config, folder: Path) -> Path:
    """Draw who holds what to ``folder/partition.png``, without training. Raises InputError."""
    data = deal(config, plan(config).source, torch.device("cpu"))
    path = folder / "partition.png"
    folder.mkdir(parents=True, exist_ok=True)
    partition_heatmap(data.class_counts, data.description.classes).savefig(path)
    return path


class History(Tracker):
    """Remembers every round's metrics, those of the rounds in ``past`` to begin with."""

    def __init__(self, past: Sequence[Record] = ()) -> None:
        self.metrics: list[Mapping[str, float]] = [record.metrics for record in past]

    def log(self, record: Record) -> None:
        """Remember one round."""
        if record.metrics:
            self.metrics.append(record.metrics)
