"""Weights & Biases. Training never waits for it and never dies of it."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from fedexp.config.schema import Wandb
from fedexp.tracking.figures import pixels, saved_figures
from fedexp.tracking.jsonl import PER_CLASS
from fedexp.tracking.tracker import Record, Tracker

if TYPE_CHECKING:
    import wandb

_TAG_LENGTH = 64
_LOGGER = logging.getLogger(__name__)


class WandbTracker(Tracker):
    """One W&B run in ``folder/wandb``.

    An online start that fails (no key, no network, no answer in time) becomes an offline one; any
    other failure turns this tracker off. Each says so in one warning.

    Args:
        folder: the run's folder.
        settings: mode, project, names and so on.
        config: the whole experiment as a plain nested dict, to read and to filter by in W&B.
        run_id: the run's id; None lets W&B make one.
        past: of a resumed run, the rounds that it has behind it; None if the run begins.
    """

    def __init__(
        self,
        folder: Path,
        settings: Wandb,
        config: dict[str, Any],
        run_id: str | None = None,
        past: Sequence[Record] | None = None,
    ) -> None:
        self._run: wandb.Run | None = None
        self._per_class: Mapping[str, float] = {}
        start = partial(_start, folder, settings, config, run_id, past is not None)
        if settings.mode == "online":
            with self._guard("cannot go online, recording offline for `wandb sync`"):
                self._run = start("online")
            if self._run is None:
                _forget_failed_start()
        if settings.mode != "disabled" and self._run is None:
            with self._guard("cannot record, going on without it"):
                self._run = start("offline")
        if past:
            self._repeat(past, folder)

    def log(self, record: Record) -> None:
        """One W&B step for the round."""
        self._per_class = record.per_class or self._per_class
        self._log(record.round, lambda: _row(record))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Add the summary and close the run: as failed when there is no summary."""
        if self._run is None:
            return
        with self._guard("finishing failed, its last numbers may be missing"):
            if self._per_class:
                self._run.summary[PER_CLASS] = _table(self._per_class)
            self._run.summary.update(_flatten(summary or {}))
            self._run.finish(exit_code=int(summary is None))

    def _repeat(self, past: Sequence[Record], folder: Path) -> None:
        """Log what is known from before the kill, pictures from their files.

        W&B cannot go on with an offline record: the last one that is synced replaces the others, so
        it has to be complete. Online, steps that W&B has already are dropped there.
        """
        pictures = saved_figures(folder)
        for record in [Record(0), *past]:
            row = partial(_row, record, pictures.get(record.round, {}))
            self._per_class = record.per_class or self._per_class
            self._log(record.round, row)

    def _log(self, round: int, row: Callable[[], dict[str, Any]]) -> None:
        if self._run is not None:
            with self._guard("logging failed, going on without it"):
                self._run.log(row(), step=round, commit=True)

    @contextmanager
    def _guard(self, consequence: str) -> Iterator[None]:
        """Turn any error into one line and this tracker off."""
        try:
            yield
        except Exception as error:
            self._run = None
            reason = str(error).partition("\n")[0] or type(error).__name__
            _LOGGER.warning("W&B: %s (%s)", consequence, reason)


def _start(
    folder: Path,
    settings: Wandb,
    config: dict[str, Any],
    run_id: str | None,
    resumed: bool,
    mode: Literal["online", "offline"],
) -> "wandb.Run":
    """A new run, also where this process has had one before; or one that is resumed."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))  # or the login would still talk
    run = wandb.init(
        dir=folder,
        mode=mode,
        id=run_id,
        resume="allow" if resumed and mode == "online" else None,
        config=config,
        project=settings.project,
        entity=settings.entity,
        group=settings.group,
        job_type=settings.job_type,
        name=settings.name,
        tags=[tag[:_TAG_LENGTH] for tag in settings.tags],
        force=mode == "online",  # no key is an error, not a silent offline run
        reinit="finish_previous",
        settings=wandb.Settings(
            console="off",
            silent=True,
            init_timeout=settings.init_timeout / 2,  # one after the other
            login_timeout=settings.init_timeout / 2,
            finish_timeout=settings.finish_timeout,
        ),
    )
    run.define_metric("round")
    run.define_metric("*", step_metric="round")
    return run


def _forget_failed_start() -> None:
    """End W&B's own process, in which the run that could not go online still has its id."""
    import wandb

    wandb.teardown()


def _row(record: Record, saved: Mapping[str, Path] = MappingProxyType({})) -> dict[str, Any]:
    """A round in W&B's types; class accuracies only beside figures, as each table is a file.

    ``saved`` are figures that were drawn in an earlier launch: name -> file.
    """
    import wandb

    row: dict[str, Any] = {"round": record.round, **record.metrics}
    row |= {name: wandb.Image(pixels(figure)) for name, figure in record.figures.items()}
    row |= {name: wandb.Image(str(path)) for name, path in saved.items()}
    if (record.figures or saved) and record.per_class:
        row[PER_CLASS] = _table(record.per_class)
    return row


def _table(per_class: Mapping[str, float]) -> "wandb.Table":
    import wandb

    return wandb.Table(
        columns=["class", "accuracy"], data=[list(pair) for pair in per_class.items()]
    )


def _flatten(summary: Mapping[str, Any]) -> dict[str, float]:
    """``global/accuracy/final`` and so on, so that they are columns of W&B's table of runs."""
    return {
        f"{name}/{statistic}": value
        for name, statistics in summary.get("metrics", {}).items()
        for statistic, value in statistics.items()
    }
