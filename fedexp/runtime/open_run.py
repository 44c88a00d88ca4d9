"""A run's folder during the run: its lock, records and checkpoint."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from fedexp.config.keys import differences
from fedexp.config.launch import Launch
from fedexp.config.schema import Config
from fedexp.config.sources import Code
from fedexp.distributed.ranks import Ranks
from fedexp.errors import InputError
from fedexp.measures.measure import Measure
from fedexp.measures.panel import directions, headlines
from fedexp.state.atomic import write_atomically
from fedexp.state.checkpoint import Checkpoint
from fedexp.state.checkpoints import Checkpoints
from fedexp.state.disk_errors import disk_errors_in_one_line
from fedexp.state.folder_lock import LOCK, locked
from fedexp.state.run_folder import (
    METRICS,
    SUMMARY,
    Identity,
    claim,
    model_files,
    read_identity,
    rounds_finished,
    write_identity,
)
from fedexp.tracking.follow import History, follow
from fedexp.tracking.jsonl import parse_records
from fedexp.tracking.origin import Origin, check_code, of_rounds, read_origins
from fedexp.tracking.tracker import Record, Tracker, Trackers

LOGGER = logging.getLogger(__name__)

_CLIENTS = "clients_{}"
"""Name of a rank's folder for client states and server tensors that exceed the RAM bound."""


@dataclass
class OpenRun:
    """The contents of a run's folder that the run works with.

    Attributes:
        folder: the run's folder; all processes use one folder.
        clients: this process's folder for states that exceed the RAM bound; deleted at the end.
        checkpoint: the checkpoint to resume from; with None the run begins at round 1.
        history: the metrics of every round so far.
        tracker: writes each round to the history and, from ``begin`` on, to ``recorder``.
        recorder: all trackers that the config chooses, as one. It gets the summary at the end.
        identity: the content of ``run.json``; None in ranks other than the first.
        origins: the content of ``origin.json``; empty in ranks other than the first.
    """

    folder: Path
    clients: Path
    checkpoint: Checkpoint | None
    history: History
    identity: Identity | None
    origins: list[Origin]
    _past: list[Record]
    _stack: ExitStack
    recorder: Tracker = field(default_factory=Tracker)
    _is_new: bool = False
    _is_lost: bool = False

    def __post_init__(self) -> None:
        self.tracker = Trackers([self.history])

    def begin(self, config: Config, launch: Launch) -> None:
        """Write ``run.json``, delete the results of an earlier process, and start the trackers.

        A run that cannot be resumed is refused before, so that its results stay as they are.
        """
        if self.identity:
            write_identity(self.folder, self.identity)
            earlier = [self.folder / SUMMARY, *model_files(self.folder)] if config.resume else []
            for result in earlier:  # the run is no longer finished
                result.unlink(missing_ok=True)
        trackers = follow(config, self.folder, launch, self.identity, self._past)
        self.recorder = self._stack.enter_context(trackers)
        self.tracker.trackers.append(self.recorder)

    @property
    def lines(self) -> bytes:
        """The lines of ``metrics.jsonl`` so far, joined; kept in memory, not read from the file."""
        return b"".join(self.history.lines)

    def has_folder(self) -> bool:
        """Whether the run's folder can be written; the first rank calls this before it writes.

        If the folder was deleted or moved, it is made again, with ``run.json`` and the metrics so
        far. A warning is logged the first time that this happens.
        """
        assert self.identity is not None
        consequence = ""
        try:
            found = read_identity(self.folder)
            if found and found.wandb_id != self.identity.wandb_id:
                raise InputError("another run is there now")
            if not found:
                self._make_folder_again(self.identity)
                consequence = "what follows is written to a new folder"
            if self._is_new:  # the open metrics.jsonl is still in the old folder
                write_atomically(self.folder / METRICS, self.lines)
        except (OSError, InputError) as error:
            consequence, is_there = f"nothing is saved any more ({error})", False
        else:
            is_there = True
        if consequence and not self._is_lost:
            LOGGER.warning("%s: was deleted or moved; %s", self.folder, consequence)
            self._is_lost = True
        return is_there

    def _make_folder_again(self, identity: Identity) -> None:
        self._is_new = True
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / LOCK).exists():
            self._stack.enter_context(locked(self.folder))
        write_identity(self.folder, identity)


@contextmanager
def open_run(
    folder: Path,
    config: Config,
    launch: Launch,
    ranks: Ranks,
    measures: Mapping[str, Measure],
    code: Code,
) -> Iterator[OpenRun]:
    """Lock the folder and find the checkpoint to resume from; ``OpenRun.begin`` begins the run.

    Args:
        folder: the folder that Hydra made for this process. All processes use the folder of the
            first process.
        config: the run's config.
        launch: how the run was started.
        ranks: the processes; all of them must call this function.
        measures: name -> measure.
        code: the files of the config's components.

    Raises:
        InputError: the folder has another run, another process is using it, the run is finished
            and cannot be resumed, the code of a part has changed, or the disk is full.
    """
    folder = _agree_on_folder(folder, ranks)
    with ExitStack() as stack:
        stack.enter_context(disk_errors_in_one_line(folder))
        # The jobs of a sweep would become one W&B run if they shared an id.
        wandb_id = None if launch.sweep else config.tracking.wandb.id
        claimed = claim(folder, config, headlines(measures), directions(measures), wandb_id)
        run = stack.enter_context(claimed) if ranks.is_first else None
        checkpoint = ranks.from_first(partial(_resume_point, config, folder, run, launch, code))
        origins = read_origins(folder) if checkpoint and ranks.is_first else []
        past = _past(checkpoint) if checkpoint else []
        clients = folder / _CLIENTS.format(ranks.rank)
        stack.callback(shutil.rmtree, clients, ignore_errors=True)
        yield OpenRun(folder, clients, checkpoint, History(past), run, origins, past, stack)


def _past(checkpoint: Checkpoint) -> list[Record]:
    """The records of the checkpoint's rounds. Raises InputError if its metrics are no such list."""
    try:
        return parse_records(checkpoint.metrics)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{checkpoint.folder / METRICS}: should be one JSON object a round ({error})"
        ) from error


def _agree_on_folder(folder: Path, ranks: Ranks) -> Path:
    """Return the first rank's folder; delete this rank's own if it has nothing but ``.hydra``."""
    shared = ranks.from_first(folder.resolve)
    if ranks.is_first:
        return folder
    if folder.resolve() != shared and {path.name for path in folder.glob("*")} == {".hydra"}:
        shutil.rmtree(folder)
    return shared


def _resume_point(
    config: Config, folder: Path, run: Identity | None, launch: Launch, code: Code
) -> Checkpoint | None:
    """Find the checkpoint to resume from, if any, and log how the run starts.

    Also deletes the folders of client states that a killed process left.

    Raises:
        InputError: the run is finished and has no checkpoint, the checkpoint cannot be read or
            belongs to another run, or the code has changed.
    """
    if config.resume is None:
        return None
    checkpoint = Checkpoints(folder, config.checkpoint.keep).latest()
    if checkpoint and checkpoint.identity:
        changed = differences(checkpoint.identity.config, config.model_dump(mode="json"))
        if changed:
            raise InputError(
                f"{checkpoint.folder}: is the checkpoint of a run that had {', '.join(changed)}; "
                "move it to another folder"
            )
    if not checkpoint and rounds_finished(folder):
        raise InputError(f"resume={folder}: the run is finished and has no checkpoint to resume")
    starts = of_rounds(read_origins(folder), checkpoint.round) if checkpoint else []
    if starts:  # earlier versions wrote no origin
        accepts = config.checkpoint.changed_code == "accept"
        for warning in check_code(folder, starts[-1], asdict(code), accepts):
            LOGGER.warning("%s", warning)
    if checkpoint:
        LOGGER.info("resume: %s goes on after round %d", folder, checkpoint.round)
    elif run and run.known:
        LOGGER.info("resume: %s has no checkpoint yet and starts afresh", folder)
    elif launch.sweep is None:
        LOGGER.info("resume: found no unfinished run like this one; starts afresh in %s", folder)
    for left in folder.glob(_CLIENTS.format("*")):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    return checkpoint
