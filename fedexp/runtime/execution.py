"""One run, from its checked config to its folder."""

from __future__ import annotations

import errno
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric import Fabric

from fedexp.config.launch import Launch
from fedexp.config.schema import Config
from fedexp.core.client import ClientModule
from fedexp.core.messages import Message
from fedexp.data.partition_table import PARTITION, write_partition
from fedexp.distributed import launcher
from fedexp.distributed.free_cores import FreeCores
from fedexp.distributed.processes import make_fabric, spawn
from fedexp.distributed.ranks import Ranks, ranks_of
from fedexp.engines.threads import restored_threads
from fedexp.errors import InputError
from fedexp.runtime.assembly import assemble
from fedexp.runtime.choices import Choices
from fedexp.runtime.limits import TimeLimit
from fedexp.runtime.plan import load_data, plan
from fedexp.runtime.training import train
from fedexp.state.checkpoint import Checkpoint, Checkpoints, save_weights
from fedexp.state.run_folder import (
    METRICS,
    SUMMARY,
    Identity,
    check,
    claim,
    objective,
    rounds_finished,
)
from fedexp.tracking.follow import History, follow
from fedexp.tracking.jsonl import as_frame, parse_records
from fedexp.tracking.pictures import partition_picture
from fedexp.tracking.summary import summarize, write_summary
from fedexp.tracking.tracker import Tracker, Trackers

if TYPE_CHECKING:
    import pandas as pd

LOGGER = logging.getLogger(__name__)

_CLIENTS = "clients_{}"
"""Folder for what exceeds the RAM bound at a rank: client states, and what the server keeps."""

_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@dataclass(frozen=True)
class RunResult:
    """The results of a run.

    Attributes:
        folder: the run's folder, with all files.
        lines: the content of ``metrics.jsonl``.
        summary: as in ``summary.json``.
        make_model: makes ``model``.
        stopped: why it ended before the last round, such as ``limits.minutes=30``; None if not.
    """

    folder: Path
    lines: bytes
    summary: dict[str, Any]
    make_model: Callable[[], ClientModule]
    stopped: str | None = None

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """One row a round, as in ``metrics.jsonl``."""
        return as_frame(self.lines)

    @cached_property
    def model(self) -> ClientModule:
        """The final global model, in eval mode; on the CPU if other processes trained it."""
        return self.make_model()

    def objective(self, metric: str) -> float:
        """The last value of the headline ``metric``, NaN if no round measured it."""
        return objective(self.summary, metric)


def execute(config: Config, folder: Path, launch: Launch) -> RunResult:
    """Run the experiment, or resume it, and write all results to ``folder``.

    It ends early, with what it has so far, at ``limits.minutes``, SIGTERM, SIGUSR1 or SIGUSR2.

    With several processes it starts those of this machine, unless torchrun or SLURM started them:
    then each calls this function, and all return the first one's result, its ``folder`` included.

    Args:
        config: the checked config.
        folder: the run's own folder; created if absent.
        launch: how the run was started.

    Raises:
        InputError: the config is invalid, ``folder`` has another run, its disk is full, or a
            process died.
        Interrupted: Ctrl-C; the rounds so far are saved.
    """
    if not launcher.must_spawn(config.engine):
        return _run(config, folder, launch)[0]
    check(folder, config)
    plan(config)  # finds errors before processes are started
    summary, stopped, message = spawn(_run_as_rank, config.engine.processes, config, folder, launch)
    model = partial(_rebuild_model, config, message)
    return RunResult(folder, (folder / METRICS).read_bytes(), summary, model, stopped)


def _run_as_rank(
    config: Config, folder: Path, launch: Launch
) -> tuple[dict[str, Any], str | None, Message]:
    """The run in one of several processes; its summary, why it stopped, and the final message."""
    result, message = _run(config, folder, launch)
    return result.summary, result.stopped, message


def _rebuild_model(config: Config, message: Message) -> ClientModule:
    """The global model of ``message``, on the CPU."""
    engine = config.engine.model_copy(update={"graph": False, "compile": False})
    planned = plan(config.model_copy(update={"engine": engine}))
    fabric = Fabric(accelerator="cpu", devices=1)
    data = load_data(config, planned.source, fabric.device)
    federation = assemble(planned, fabric, data, Tracker())
    return federation.engine.resources.load_global(message).eval()


def _run(config: Config, folder: Path, launch: Launch) -> tuple[RunResult, Message]:
    """The run in this process, or its share of it; returns the result and the final message."""
    start, limit = time.perf_counter(), TimeLimit(config.limits.minutes)
    free_cores = FreeCores()  # counts from now on
    if launcher.this_process().rank == 0:
        check(folder, config)
    planned = plan(config)
    fabric = make_fabric(config.engine)
    ranks = ranks_of(fabric)
    folder = _agree_on_folder(folder, ranks)
    with fabric.rank_zero_first(local=True):  # the others then find the caches
        data = load_data(config, planned.source, fabric.device)
    with (
        restored_threads(),
        _report_full_disk(folder),
        claim(folder, config) if ranks.is_first else nullcontext() as run,
    ):
        if ranks.is_first:
            write_partition(folder / PARTITION, data)
        checkpoint = ranks.from_first(partial(_resume_point, config, folder, run, launch))
        start -= checkpoint.seconds if checkpoint else 0
        past = parse_records(checkpoint.metrics) if checkpoint else []
        history = History(past)
        choices = Choices(config.engine, ranks, checkpoint, log=launch.sweep is None)
        choices.limit_threads(fabric.device, free_cores)
        with follow(config, folder, launch, run, past) as tracker:
            trackers = Trackers([history, tracker])
            clients = folder / _CLIENTS.format(ranks.rank)
            federation = assemble(planned, fabric, data, trackers, clients)
            with _removed(clients):
                last, stopped, chosen = train(
                    federation, config, checkpoint, folder, start, limit, choices
                )
            model = federation.global_model(last)
            seconds = time.perf_counter() - start
            summary = _summary(config, launch, history, model, str(fabric.device), seconds, chosen)
            if ranks.is_first:
                save_weights(model.state_dict(), folder)
                write_summary(folder, summary)
            tracker.finish(summary)
    lines, summary = ranks.from_first(lambda: ((folder / METRICS).read_bytes(), summary))
    result = RunResult(folder, lines, summary, lambda: model, stopped)
    return result, federation.server.broadcast(last)


def _agree_on_folder(folder: Path, ranks: Ranks) -> Path:
    """The first rank's folder; the empty ones that Hydra created for the others are deleted."""
    shared = ranks.from_first(folder.resolve)
    if ranks.is_first:
        return folder
    if folder.resolve() != shared and {path.name for path in folder.glob("*")} == {".hydra"}:
        shutil.rmtree(folder)
    return shared


def _resume_point(
    config: Config, folder: Path, run: Identity | None, launch: Launch
) -> Checkpoint | None:
    """The checkpoint to resume from, if any; logs how the run starts.

    Raises:
        InputError: the run is finished and has no checkpoint.
    """
    if config.resume is None:
        return None
    checkpoint = Checkpoints(folder, config.checkpoint.keep).latest()
    if checkpoint and checkpoint.round > config.rounds:
        raise InputError(f"rounds={config.rounds}: {folder} has {checkpoint.round} already")
    if not checkpoint and rounds_finished(folder):
        raise InputError(f"resume={folder}: is finished and has no checkpoint to go on from")
    if checkpoint:
        LOGGER.info("resume: %s goes on after round %d", folder, checkpoint.round)
    elif run and run.known:
        LOGGER.info("resume: %s has no checkpoint yet and starts afresh", folder)
    elif launch.sweep is None:
        LOGGER.info("resume: found no unfinished run like this one; starts afresh in %s", folder)
    for left in folder.glob(_CLIENTS.format("*")):  # of a killed process
        shutil.rmtree(left, ignore_errors=True)
    (folder / SUMMARY).unlink(missing_ok=True)  # the run is no longer finished
    return checkpoint


def _summary(
    config: Config,
    launch: Launch,
    history: History,
    model: ClientModule,
    device: str,
    seconds: float,
    chosen: Mapping[str, int | str],
) -> dict[str, Any]:
    """The content of ``summary.json``."""
    return summarize(
        history.metrics,
        config.model_dump(mode="json"),
        launch.overrides,
        launch.choices,
        model.weights,
        device,
        seconds,
        chosen,
    )


@contextmanager
def _removed(folder: Path) -> Iterator[None]:
    """Delete ``folder``, if it exists, when the block ends."""
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _report_full_disk(folder: Path) -> Iterator[None]:
    """Raise InputError if the disk is full, or fails."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        raise InputError(
            f"{folder}: cannot be written ({error.strerror}); make room and go on by "
            f"resume={folder}"
        ) from error


def draw_partition(config: Config, folder: Path) -> list[Path]:
    """Write the partition to ``folder``, as a picture and as a table, without training.

    Returns the two paths, ``partition.png`` and ``partition.csv``. Raises InputError.
    """
    data = load_data(config, plan(config).source, torch.device("cpu"))
    folder.mkdir(parents=True, exist_ok=True)
    picture, table = folder / "partition.png", folder / PARTITION
    partition_picture(data).savefig(picture)
    write_partition(table, data)
    return [picture, table]
