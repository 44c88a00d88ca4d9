"""Starts the trackers that the config names, and keeps their errors away from training."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedexp.config.build import build
from fedexp.config.launch import Launch
from fedexp.config.schema import Config, TrackerOption
from fedexp.errors import InputError
from fedexp.state.run_folder import Identity
from fedexp.tracking.jsonl import JsonLines, line
from fedexp.tracking.tracker import Record, RunInfo, Tracker, Trackers

LOGGER = logging.getLogger(__name__)

_JSONL = "jsonl"
_SUPPLIED = ("run",)


def check_trackers(options: Mapping[str, TrackerOption | None]) -> None:
    """Raise InputError if ``tracking.trackers`` is wrong; no tracker is started."""
    jsonl = options.get(_JSONL)
    if jsonl is None or not jsonl.enabled:
        raise InputError(f"{_key(_JSONL)}: cannot be left out; metrics.jsonl is always written")
    for name, option in _enabled(options):
        base = JsonLines if name == _JSONL else Tracker
        build(_key(name), option.node, base, _SUPPLIED)


@contextmanager
def follow(
    config: Config,
    folder: Path,
    launch: Launch,
    run: Identity | None,
    past: Sequence[Record],
) -> Iterator[Tracker]:
    """Start and yield a run's trackers; they are finished here only if the ``with`` block fails.

    Args:
        config: the checked config.
        folder: the run's folder.
        launch: how the run was started.
        run: the content of ``run.json`` in the first process; None in other processes, which get a
            tracker that does nothing.
        past: the earlier rounds of a resumed run.
    """
    if run is None:
        yield Tracker()
        return
    info = RunInfo(
        folder=folder,
        rounds=config.rounds,
        config=config.model_dump(mode="json"),
        choices=launch.choices,
        overrides=launch.overrides,
        sweep=launch.sweep,
        run_id=run.wandb_id,
        headlines=run.headlines,
        resumed=run.known,
        past=past,
        origins=launch.origins,
    )
    started: list[Tracker] = []
    try:
        for name, option in _enabled(config.tracking.trackers):
            started.append(_start(name, option, info))
        yield Trackers(started)
    except BaseException:
        Trackers(started).finish(None)
        raise


class Guarded(Tracker):
    """Wraps a tracker so that its errors do not stop the run.

    The first error becomes a warning, and the wrapped tracker gets no more records. ``finish`` is
    called even after an error, so that files and connections are closed.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self.closes_round = tracker.closes_round
        self._failed = False

    def log(self, record: Record) -> None:
        """Pass the record to the wrapped tracker, unless an earlier record failed."""
        if not self._failed:
            with self._guard(f"round {record.round} could not be logged, going on without it"):
                self._tracker.log(record)

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        """Finish the wrapped tracker."""
        with self._guard("could not finish, its last numbers may be missing"):
            self._tracker.finish(summary)

    @contextmanager
    def _guard(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not self._failed:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                LOGGER.warning("%s: %s (%s)", _key(self._name), consequence, reason)
            self._failed = True


class History(Tracker):
    """Keeps the metrics of every round in memory, beginning with the rounds in ``past``.

    Attributes:
        metrics: the metrics of each round, in order.
        lines: the line of each round in ``metrics.jsonl``, in order.
    """

    def __init__(self, past: Sequence[Record] = ()) -> None:
        self.metrics: list[Mapping[str, float]] = []
        self.lines: list[bytes] = []
        for record in past:
            self.log(record)

    def log(self, record: Record) -> None:
        """Append the metrics of one round, and its line of ``metrics.jsonl``."""
        if record.metrics:
            self.metrics.append(record.metrics)
            self.lines.append(line(record))


def _enabled(
    options: Mapping[str, TrackerOption | None],
) -> Iterator[tuple[str, TrackerOption]]:
    """Yield (name, option) of each tracker to start: first ``jsonl``, then in config order."""
    for name in sorted(options, key=lambda name: name != _JSONL):
        option = options[name]
        if option is not None and option.enabled:
            yield name, option


def _start(name: str, option: TrackerOption, info: RunInfo) -> Tracker:
    try:
        tracker: Tracker = build(_key(name), option.node, Tracker, _SUPPLIED)(run=info)
    except Exception as error:
        error.add_note(f"while starting {_key(name)}")
        raise
    return tracker if tracker.essential else Guarded(name, tracker)


def _key(name: str) -> str:
    return f"tracking.trackers.{name}"
